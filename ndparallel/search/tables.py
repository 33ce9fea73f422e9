"""What a search found, as tables for people, and as JSON and CSV for programs."""

import csv
import io
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from gpu import si
from ndparallel.base.words import WIDTH, change_in, count, listed
from ndparallel.launch_flags.frameworks import FRAMEWORKS, launched_by, own_refusal, whose
from ndparallel.planner.describe import (
    assumed_links,
    bound,
    cut_words,
    peak_words,
    plan_words,
    size_words,
    training_words,
)
from ndparallel.planner.job import TrainingJob
from ndparallel.planner.plan_name import explained, name_of
from ndparallel.planner.prediction import PLAN_FIELDS, Prediction
from ndparallel.results.printing import plain_console, prose
from ndparallel.results.tables import quiet_table
from ndparallel.search.kinds import DIMENSIONS, ROOM, choice_error, is_uneven, recomputes, recomputes_layers
from ndparallel.search.search import Found
from ndparallel.search.space import outside
from ndparallel.search.timing_queue import EFFORT

COLUMNS = ("step", "MFU", "memory", "most lost to")
MOST_KINDS = 10  # lines
FIGURES = ("step_seconds", "tokens_per_second_per_gpu", "tflops_per_gpu", "mfu", "hfu", "microbatches")


def cells(found: Prediction) -> tuple[str, ...]:
    kind, share = bound(found)
    return (
        plan_words(found.plan),
        si(found.seconds, "s"),
        f"{found.mfu:.1%}",
        memory_words(found),
        f"{kind} {share:.0%}",
    )


def memory_words(found: Prediction) -> str:
    return si(float(found.fullest.total), "B") + " tight" * found.is_tight


def ranking(answers: Sequence[Prediction], width: int, what: str) -> Table:
    """Plans, and what bounds each."""
    return quiet_table((what, *COLUMNS), [cells(found) for found in answers], width)


def rejected(found: Found, width: int) -> Table:
    """Why other plans are none, the most frequent reason first."""
    rows = [(reason, f"{number:,}") for reason, number in found.rejected.most_common()]
    return quiet_table(("rejected", "plans or layouts"), rows, width)


def certainty(found: Found) -> str:
    """How many plans there were, and how sure it is that the first is the fastest."""
    counted = (
        f"{found.legal:,} legal plans, of which {found.fit:,} fit. For all of these a lower bound of the "
        f"step was computed, for {count(found.timed, 'plan')} the step itself."
    )
    if found.gap < 0.0005:
        return f"{counted} None of the others can be faster. {outside(found.space, found.beside)}"
    sure = f"By its bound none of the others can be more than {found.gap:.1%} faster than the first."
    return f"{counted} {sure} {outside(found.space, found.beside)}"


def as_json(found: Found, tokens: float, price: float | None = None) -> dict[str, Any]:
    """Tell what was found in JSON's types, with the stable keys."""
    return {
        "plans": [answer_json(found.job, answer, tokens, price) for answer in found.answers],
        **found.counts(),
        "kinds": [
            answer_json(found.job, answer, tokens, price) | {"equal": is_equal(found, answer)}
            for answer in found.kinds
        ],
        "recommended": answer_json(found.job, found.recommended, tokens, price),
        "reason": reason(found),
        "faster_with_less_headroom": found.tighter and answer_json(found.job, found.tighter, tokens, price),
        "error_of_choice": error_of_choice(found),
    }


def answer_json(job: TrainingJob, answer: Prediction, tokens: float, price: float | None) -> dict[str, Any]:
    by = {"launched_by": launched_by(job, answer.plan)}
    return answer.as_dict() | answer.training(tokens, price) | by


def as_csv(answers: Iterable[Prediction]) -> str:
    """One line a plan, under a line of names."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        [*PLAN_FIELDS, *FIGURES, "memory_bytes", "bound_by", "bound_ratio", "name", "launched_by"]
    )
    for answer in answers:
        values = answer.as_dict()
        writer.writerow(
            [
                *(values["plan"][name] for name in PLAN_FIELDS),
                *(values[name] for name in FIGURES),
                answer.fullest.total,
                *bound(answer),
                values["name"],
                " ".join(launched_by(answer.job, answer.plan)),
            ]
        )
    return text.getvalue()


# ------------------------------------------------------------------------------------------- which to take


def is_equal(found: Found, answer: Prediction) -> bool:
    return any(one.plan == answer.plan for one in found.equals)


def equal_kinds(found: Found) -> int:
    """How many kinds predictions cannot tell from the fastest, itself among them."""
    return max(1, sum(is_equal(found, kind) for kind in found.kinds))


def error_of_choice(found: Found) -> float:
    """How much longer the recommended step may turn out: the least of the equal kinds' predictions."""
    return choice_error(found.recommended.error_bar.fraction, equal_kinds(found))


def reason(found: Found) -> str:
    """Why the recommended plan, against the fastest."""
    take, best = found.recommended, found.best
    if take.plan == best.plan:
        return "it is the fastest, and no simpler plan is as fast"
    longer = f"its step is {take.seconds / best.seconds - 1:.1%} longer than the fastest"
    return f"{longer}, which predictions cannot tell apart, and {merit(found.job, take, best)}"


def merit(job: TrainingJob, take: Prediction, best: Prediction) -> str:
    """What is simpler in one plan than in another."""
    mine, theirs = (
        [name.upper() for name in DIMENSIONS if getattr(one.plan, name) > 1] for one in (take, best)
    )
    if len(mine) < len(theirs):
        return f"it needs {listed(mine) or 'no model parallelism'} where the fastest needs {listed(theirs)}"
    if len(mine) == len(theirs) and recomputes_layers(best.plan) and not recomputes_layers(take.plan):
        return "it recomputes no layers"
    if best.plan.tp > job.hardware.gpus_per_node >= take.plan.tp:
        return "its TP stays inside a node"
    if is_uneven(job, best.plan) and not is_uneven(job, take.plan):
        return "all its stages have the same number of layers"
    freed = float(best.fullest.total - take.fullest.total)
    if freed < ROOM * job.hardware.memory_bytes:
        if take.plan.chunks < best.plan.chunks:
            fewer = count(take.plan.chunks, "chunk")
            return f"it has {fewer} on a pipeline rank where the fastest has {best.plan.chunks}"
        if best.plan.shards and not take.plan.shards:
            return "it has no replicas of its shards"
        if recomputes(best.plan) and not recomputes(take.plan):
            return "it recomputes nothing"
    return f"it leaves {si(freed, 'B')} more of the memory free"


def advice_sentences(found: Found, tokens: float, price: float | None, top: int | None = None) -> list[str]:
    """Which plan to take, how sure that is, what it costs and who can launch it, below the `top` fastest
    plans or those of each kind."""
    take = found.recommended
    return [
        f"Take {name_of(take.plan)}: {reason(found)}.",
        f"In that name: {explained(take.plan)}.{no_pipeline_words(found)}",
        f"A step takes {si(take.seconds, 's')} {take.error_bar.sentence}{choice_words(found, top)}",
        f"{training_words(take, tokens, price)}.{free_words(found)}",
        *([f"MFU {take.mfu:.1%}{peak}."] if (peak := peak_words(take)) else []),
        *tighter_sentences(found, "; --headroom {} lets a search take it"),
        launch_words(found),
        *assumed_links(found.job, found.gpus),
    ]


def no_pipeline_words(found: Found) -> str:
    """What is said of a plan without a pipeline where a schedule was asked for."""
    asked = found.space.fixed.get("schedule")
    if not isinstance(asked, str) or found.recommended.plan.pp > 1:
        return ""
    return f" It has no pipeline, so that {asked} does not count: --pp asks for one."


def choice_words(found: Found, top: int | None) -> str:
    equals = equal_kinds(found)
    if equals == 1:
        return ""
    kinds = f"{equals} kinds (listed without --top)" if top else f"the {equals} kinds marked ="
    return (
        f" Predictions cannot tell {kinds} apart, and the smallest of several uncertain "
        f"numbers is mostly one that came out too small: reckon with up to +{error_of_choice(found):.0%}."
    )


def free_words(found: Found) -> str:
    take = found.recommended
    free = 1 - float(take.fullest.total) / found.job.hardware.memory_bytes
    if not take.is_tight:
        return f" The plan leaves {free:.1%} of the memory free."
    return (
        f" The plan is tight: it leaves {free:.1%} of the memory, which is predicted to "
        f"+- {take.memory_bar.fraction:.0%}: leave more with --headroom."
    )


def tighter_sentences(found: Found, option: str = "") -> list[str]:
    """What the headroom costs, where a faster plan fits the memory without it. `option` says how to search
    for such plans, with a place for the percentage."""
    if not (other := found.tighter):
        return []
    whole = found.job.hardware.memory_bytes
    full, free = float(other.fullest.total) / whole, 1 - found.space.memory_bytes / whole
    less = f"{1 - other.seconds / found.best.seconds:.1%} less time than the fastest above"
    return [
        f"A faster plan fits the memory, but does not leave {100 * free:.3g}% of it free: "
        f"{name_of(other.plan)} takes {less}. It fills {full:.1%}, predicted to +- "
        f"{other.memory_bar.fraction:.0%}{option.format(int(100 * (1 - full)))}."
    ]


def launch_words(found: Found) -> str:
    """Who can launch it, first the frameworks whose software is priced; or why nobody."""
    plan, job = found.recommended.plan, found.job
    by, mine = launched_by(job, plan), found.space.frameworks or whose(job)
    own, others = ([FRAMEWORKS[name].release for name in by if (name in mine) == of] for of in (True, False))
    if own:
        also = f", and so can {listed(others)}, at speeds of their own" * bool(others)
        return f"{listed(own)} can launch it{also}."
    if others:
        speeds = f"at speeds of {'their' if others[1:] else 'its'} own"
        return f"{own_refusal(job, plan)} {listed(others)} can launch it, {speeds}."
    return f"No framework here can launch it: {FRAMEWORKS[mine[0]].refusal(job, plan)}"


def effort_words(gpus: int) -> str:
    """What a search goes through at the most."""
    where = count(gpus, "GPU")
    return f"a search of all legal plans on {where}: {EFFORT:,} actions are timed at the most"


# ---------------------------------------------------------------------------------------------------- printed


def show_search(found: Found, top: int | None) -> None:
    """One line a kind of plan and which to take; or the `top` fastest plans."""
    console, width = plain_console()
    job, title = found.job, found.job.shape.name
    words = (
        f"{size_words(job)} on {count(found.gpus, 'GPU')} ({job.hardware.name}), "
        f"{job.dtype}, {job.stack.name}."
    )
    console.print(
        prose(f"{title}  {words} Batch {job.global_batch} x {job.sequence}.", width, bold=title), end="\n\n"
    )
    plans = fastest(found, width) if top else kinds(found, width)
    for table in (plans, *([rejected(found, width)] if found.rejected else [])):
        console.print(table)
        console.print()
    console.print(prose(certainty(found), width))


def fastest(found: Found, width: int) -> Table:
    """The fastest plans, whatever their kind."""
    return named_table(found, found.answers, "plan", width)


def kinds(found: Found, width: int) -> Table:
    """The fastest plan of each kind; "=" before those that predictions cannot tell from the fastest."""
    marks = equal_kinds(found) > 1
    return named_table(found, found.kinds[:MOST_KINDS], "the fastest plan of each kind", width, marks)


def named_table(
    found: Found, answers: Sequence[Prediction], what: str, width: int, marks: bool = False
) -> Table:
    """Plans by name; who can launch each, where the search did not ask for that."""
    others = () if found.space.frameworks else ("launched by",)
    rows = []
    for answer in answers:
        mark = ("= " if is_equal(found, answer) else "  ") * marks
        by = [first_of(launched_by(found.job, answer.plan))] * len(others)
        rows.append((mark + name_of(answer.plan), *cells(answer)[1:], *by))
    return quiet_table(("  " * marks + what, *COLUMNS, *others), rows, width)


def first_of(names: Sequence[str]) -> str:
    """Write "megatron", "megatron +1" or "nobody"."""
    if not names:
        return "nobody"
    return f"{names[0]} +{len(names) - 1}" if names[1:] else names[0]


def show_changes(console: Console, before: Prediction, changed: dict[str, Prediction]) -> None:
    if changed:
        console.print()
        rows = [("as it is", si(before.seconds, "s"), "-", fitting_words(before))]
        rows += [
            (change, si(now.seconds, "s"), change_in(now.seconds, before.seconds), fitting_words(now))
            for change, now in changed.items()
        ]
        columns, width = ("what if", "step", "change", "plan"), min(console.width, WIDTH)
        console.print(quiet_table(columns, rows, width, words=("plan",)))


def fitting_words(found: Prediction) -> str:
    fits = ", does not fit" if found.missing_bytes > 0 else ", fits tightly" * found.is_tight
    cut = cut_words(found.job, found.plan)
    return plan_words(found.plan) + f", {cut}" * bool(cut) + fits


def what_if_json(changed: dict[str, Prediction]) -> list[dict[str, Any]]:
    return [{"change": change} | now.as_dict() for change, now in changed.items()]
