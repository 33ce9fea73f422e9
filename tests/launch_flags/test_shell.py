"""Claims about scripts as people write them: what a shell would hand to Megatron, and what is asked for where
only the shell could know."""

import subprocess
from dataclasses import replace

import pytest

from ndparallel.base.errors import UserError
from ndparallel.commands.command_line import main
from ndparallel.launch_flags.megatron.read import read_megatron
from ndparallel.launch_flags.reading import Beside, Reading
from ndparallel.launch_flags.shell.reader import read_script
from tests.launch_flags.test_flags import H100, LINE


def read(text: str, **given: str) -> Reading:
    return read_megatron(text, H100, Beside(variables=given))


def words(text: str, **given: str) -> list[str]:
    (found,) = read_script(text, given).commands
    return found


# ------------------------------------------------------------------------------------ where a command ends


@pytest.mark.parametrize(
    "end",
    [
        "2>&1 | tee log.txt",
        "> out.log 2>&1 &",
        ">> out.log",
        "&> out.log",
        "&",
        "| tee ${LOG}/log.txt",
        "2>/dev/null || true",
        "< /dev/null",
        "2> >(tee errors.txt)",
    ],
)
def test_pipes_redirections_and_ampersands_end_a_command(end):
    assert words(f"torchrun x.py --num-layers 2 --exit-interval 5000 {end}") == [
        *("torchrun", "x.py", "--num-layers", "2", "--exit-interval", "5000")
    ]


def test_what_looks_like_a_redirection_in_quotes_is_a_word():
    assert words("x.py --num-layers 2 --save 'a > b | c & d' --load \"<path>\"")[4:] == [
        *("a > b | c & d", "--load", "<path>")
    ]


def test_a_placeholder_is_read_as_the_shell_would_and_no_plan_depends_on_it():
    assert read(f"{LINE} --save <some dir>/checkpoints").job.shape.layers == 32


# ---------------------------------------------------------------------------- flags that cannot be refused


@pytest.mark.parametrize(
    "flags",
    [
        "--save /ckpt/$(date +%F) --load `pwd`/a b",
        "--lr-decay-iters $(( / / ))",
        "--tokenizer-model",
        '--step-batch-size-schedule 0:16 "2.4B:320"',
        "--lr 1e-4 2e-4 3e-4",
    ],
)
def test_a_flag_that_no_plan_depends_on_never_refuses(flags):
    assert read(f"{LINE} {flags}").plan == read(LINE).plan


def test_the_last_of_a_flag_given_twice_counts_and_this_is_said():
    found = read(f"{LINE} --micro-batch-size 2 --seq-length 1024")
    assert (found.plan.micro_batch, found.job.sequence) == (2, 1024)
    assert "Given twice, and the last counts: --micro-batch-size, --seq-length." in found.notes


@pytest.mark.parametrize(
    "flags, position, norm",
    [
        ("--position-embedding-type alibi", "alibi", "layernorm"),
        ("--position-embedding-type rotary --normalization rmsnorm", "rotary", "rmsnorm"),
        ("--normalization layernorm", "learned", "layernorm"),
    ],
)
def test_the_words_of_forks_are_known(flags, position, norm):
    shape = read(f"{LINE} {flags}").job.shape
    assert (shape.position, shape.norm) == (position, norm)


def test_one_expert_is_a_dense_layer():
    assert read(f"{LINE} --num-experts 1").job.shape.experts is None


# ------------------------------------------------------------------------- what is said from outside the file

SIZED = LINE.replace("--num-layers 32", "--num-layers ${LAYERS}")
BY_IF = f"""
SIZE=$2
if [ $SIZE = 7B ]; then
  LAYERS=32
elif [ $SIZE = 70B ]; then
  LAYERS=80
fi
{SIZED}
"""
BY_CASE = f"""
SIZE=${{1:-7B}}
case "$SIZE" in
  7B|8B)
    LAYERS=32 ;;
  70B) LAYERS=80
    ;;
  *) LAYERS=4 ;;
esac
{SIZED}
"""


@pytest.mark.parametrize(
    "text, given, layers",
    [
        (BY_IF, {"2": "70B"}, 80),
        (BY_IF, {"SIZE": "7B"}, 32),
        (BY_IF, {"LAYERS": "12"}, 12),
        (BY_CASE, {}, 32),
        (BY_CASE, {"1": "8B"}, 32),
        (BY_CASE, {"1": "70B"}, 80),
        (BY_CASE, {"SIZE": "other"}, 4),
    ],
)
def test_variables_and_arguments_from_outside_choose_the_branch(text, given, layers):
    assert read(text, **given).job.shape.layers == layers


def test_a_branch_that_nobody_knows_is_left_out_and_the_variable_is_asked_for_with_its_line():
    with pytest.raises(UserError, match=r"^line 8: --num-layers .* under a condition .* --set LAYERS=VALUE"):
        read(BY_IF)


def test_bash_agrees_on_the_words(tmp_path):
    """bash itself, with torchrun played by printf."""
    text = BY_CASE.replace("torchrun", "printf '%s\\n'") + " 2>&1 | cat"
    (tmp_path / "launch.sh").write_text(text)
    for size in ("7B", "8B", "70B", "none"):
        command = ["bash", "launch.sh", size]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
        assert words(BY_CASE, **{"1": size})[1:] == done.stdout.split()


@pytest.mark.parametrize(
    "sum_", ["(8 > 1) ? 1 : 0", "17 % 5 * 2 - 30 / 4", "(2 - 9) / 2 + (2 - 9) % 4", "3 >= 4"]
)
@pytest.mark.parametrize("test", ["-gt 1", "-le 1", "!= 0", "= 1", "-eq 04"])
def test_bash_agrees_on_sums_and_comparisons(sum_, test):
    text = (
        f"N=$(({sum_})); if ! [ $N {test} ]; then YES=no; else YES=yes; fi; printf '%s\\n' --n $N --yes $YES"
    )
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert words(text)[2:] == done.stdout.split()


@pytest.mark.parametrize(
    "text",
    [
        ': "${A:=2}"',
        ": ${A:=2} ${B=$A}; C=$B",
        'A=4; : "${A:=2}"',
        'A=; : "${A:=2}" "${B:=$((A * 8))}"',
        "A=; : ${A=2}; B=x${A:-3}y${A-3}",
        "A=${B:=7}x C=$B",
        ": '${A:=2}' \\${B:=3}",
        ': "it\'s ${A:=x y}"',
        ': ${A:="x y"} $(: ${B:=3}) `: ${C:=4}`',
        "(: ${A:=2})",
        ": ${A:=--a 1}",
        "B=3; A=${C:-${B}} C=${D:-x${E:-5}y}",
        "N=2; A=$[N*8] B=x$[ 2 + 1 ]y C=$[(3 + 1) % 3]",
    ],
)
def test_bash_agrees_on_defaults_and_older_sums(text):
    text += '\nprintf \'%s\\n\' --a "|${A:-none}" "|${B:-none}" "|${C:-none}"'
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True, env={})
    assert words(text)[2:] == done.stdout.splitlines()


def test_a_default_that_is_assigned_sizes_the_model_and_a_given_value_comes_before_it():
    text = f': "${{LAYERS:=16}}"\n{SIZED}'
    assert read(text).job.shape.layers == 16
    assert read(text, LAYERS="8").job.shape.layers == 8
    with pytest.raises(UserError, match="give --set LAYERS=VALUE"):
        read(f"if [ -d /data ]; then : ${{LAYERS:=16}}; fi\n{SIZED}")


def test_a_comment_in_backticks_stands_between_continued_flags():
    commented = LINE.replace("--num-layers", "`# the model's size` \\\n  --num-layers")
    assert read(commented).job == read(LINE).job
    text = "printf '%s\\n' --a `# it's` 1x`#`y \\\n '`# kept`' # and `# another`"
    done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, check=True)
    assert words(text)[2:] == done.stdout.splitlines()


def test_what_only_an_unknown_condition_sets_is_never_taken_for_known():
    asks = "if [ -d /data ]; then MORE='--sequence-parallel'; LAYERS=2; DATA='--data-path /data'; fi\n"
    assert read(f"DATA='--seed 1'\n{asks}{LINE} $DATA").job.shape.layers == 32  # no plan depends on it
    with pytest.raises(UserError, match=r"MORE.* may hold --sequence-parallel.* give --set MORE"):
        read(f"{asks}{LINE} $MORE")
    with pytest.raises(UserError, match="give --set LAYERS=VALUE"):
        read(f"LAYERS=4\n{asks}{SIZED}")
    found = read(f"MORE='--bf16'\nif [ -d x ]; then MORE=\"$MORE --seed 1\"; fi\n{LINE} $MORE")
    assert "--bf16: float32" not in " ".join(found.notes)  # what stands before is known all the same


def test_a_variable_that_is_tested_and_never_set_is_empty_as_the_note_says():
    asks = 'if [ -z "$LAYERS" ]; then LAYERS=4; fi\n'
    found = read(asks + SIZED)
    assert found.job.shape.layers == 4 and "never set, so empty: LAYERS" in found.notes[0]
    assert read(asks + SIZED, LAYERS="8").job.shape.layers == 8


def test_what_bash_c_is_given_is_the_command_and_echo_is_none():
    line = LINE.replace("--nproc-per-node 8", "--nproc-per-node 4")
    assert read(f'CMD="{line}"\necho $CMD --num-layers 1\nsrun --wait=60 bash -c "$CMD"').plan.dp == 8


# --------------------------------------------------------------------- what a script says of its own start


def test_slurms_directives_give_the_nodes_and_a_callers_variables_overrule_them():
    head = "#SBATCH --nodes=4   # of eight\n#SBATCH --gres=gpu:a100:8\n##SBATCH --nodes=9\n"
    line = LINE.replace("--nnodes 2", "--nnodes $SLURM_NNODES").replace("node 8", "node $SLURM_GPUS_ON_NODE")
    assert read(head + line).plan.dp == 32
    assert read(head + line, SLURM_NNODES="8").plan.dp == 64


PLAIN = LINE.replace("torchrun --nnodes 2 --nproc-per-node 8", "python -u")


@pytest.mark.parametrize(
    "directives, launcher, gpus",
    [
        ("--nodes=8 --gpus-per-node=8", "srun", 64),
        ("-A x -N 4 --gpus-per-node=8", "srun -l", 32),
        ("-N4 --exclusive --gres gpu:h100:8,nvme:1 -J 'a b' # of eight", "/usr/bin/srun -u", 32),
        ("--gres=nvme:1 --nodes=4 --ntasks-per-node 8", "srun", 32),
        ("-J a#b -n 32", "srun --container-image x.sqsh bash -c", 32),
        ("-G 32 --nodes 4", "srun", 32),
        ("--nodes=8 -N 4 --gpus-per-node=a100:8 --ntasks-per-node=8", "srun", 32),
        ("--nodes=8 --gpus-per-node=8", "srun -K1 -N 2 --ntasks-per-node=8 numactl -N 0", 16),
        ("--nodes=8 --gpus-per-node=8", "srun -n64 --label nice -n 10", 64),
        ("-N 4 --ntasks-per-node=8", "mpirun", 32),
        ("--time=1:00", "mpirun -np 32", 32),
        ("--time=1:00", "mpirun --allow-run-as-root -mca pml ob1 -x A=1 -n 32 nice -n 10", 32),
        ("--time=1:00", "mpiexec -H a:16,b:16 --np 32", 32),
        ("--time=1:00", f"mpirun -np 8 -host a {PLAIN} : -np 24 -host b", 32),
        ("--time=1:00", f"mpirun -np 2 {PLAIN} : -np 2 {PLAIN} : -n 12", 16),
    ],
)
def test_srun_and_mpirun_say_how_many_gpus_where_no_torchrun_does(directives, launcher, gpus):
    command = f'{launcher} "{PLAIN}"' if launcher.endswith("-c") else f"{launcher} {PLAIN}"
    found = read(f"#!/bin/bash\n#SBATCH {directives}\n{command}")
    assert found.plan.dp == gpus


@pytest.mark.parametrize(
    "directives, command, said",
    [
        ("--nodes=8 --gpus-per-node=8", PLAIN, "how many GPUs"),  # one process
        ("--gpus-per-node=8", f"srun {PLAIN}", "how many GPUs"),  # sbatch may be given the nodes
        ("--nodes=2-4 --gpus-per-node=8", f"srun {PLAIN}", "how many GPUs"),
        ("--nodes=8 --gpus-per-node=8", f"srun -N $HOSTS {PLAIN}", "how many GPUs"),
        ("--nodes=8 --gpus-per-node=8", f"mpirun -np $RANKS {PLAIN}", "how many GPUs"),
        ("--time=1:00", f"mpirun -np 8 {PLAIN} : {PLAIN}", "how many GPUs"),
        ("--time=1:00", f"mpirun -np 8 {PLAIN} : -np 8 {PLAIN} --swiglu", "between its colons"),
        ("--nodes=8 --gpus-per-node=8", f"srun torchrun --nnodes 8 {PLAIN[10:]}", "how many GPUs"),
        ("--nodes=8 --gpus-per-node=8 -n 8", f"srun {PLAIN}", "starts 8 tasks on 64 GPUs.* add --gpus"),
    ],
)
def test_gpus_that_a_directive_leaves_open_are_asked_for(directives, command, said):
    with pytest.raises(UserError, match=said):
        read(f"#SBATCH {directives}\n{command}")


def test_torchruns_own_arguments_come_before_the_directives_and_its_word_gpu_is_theirs():
    head = "#SBATCH --nodes=8 --gpus-per-node=4\n"
    assert read(f"{head}srun {LINE}").plan.dp == 16
    assert read(head + LINE.replace("node 8", "node gpu")).plan.dp == 8
    assert read(f"{head}srun {PLAIN}", SLURM_NNODES="2").plan.dp == 8
    with_tasks = "#SBATCH --nodes=8 --ntasks-per-node=4\n"
    assert read(f"{with_tasks}srun {PLAIN}", SLURM_NNODES="2").plan.dp == 8


@pytest.mark.parametrize(
    "example, layers",
    [
        ("# bash launch.sh dsw 70B", 80),
        ("#sh ../examples/launch.sh dsw 7B", 32),
        ("# bash another.sh dsw 70B", None),  # a copy of another script's
        ("# bash launch.sh 70B", None),  # from before there was a second argument
        ("bash launch.sh dsw 70B", None),  # which is a command
    ],
)
def test_an_example_in_a_comment_gives_the_arguments_where_it_is_the_scripts_own(example, layers):
    text = f"#!/bin/bash\n{example}\n{BY_IF}"
    if layers is None:
        with pytest.raises(UserError, match="LAYERS"):
            read_megatron(text, H100, Beside(name="launch.sh"))
        return
    found = read_megatron(text, H100, Beside(name="launch.sh"))
    assert found.job.shape.layers == layers and "example in its line 2: 'dsw " in found.notes[0]
    given = read_megatron(text, H100, Beside(name="launch.sh", variables={"1": "dsw", "2": "7B"}))
    assert given.job.shape.layers == 32 and "example" not in given.notes[0]


def test_a_script_that_asks_for_no_arguments_takes_none_from_an_example():
    notes = read_megatron(f"# bash launch.sh 70B\n{LINE}", H100, Beside(name="launch.sh")).notes
    assert not any("example" in note for note in notes)


def test_of_variables_that_nothing_decides_eight_are_named():
    loops = "\n".join(f"for NAME_{number} in 1 2; do cd /; done" for number in range(9))
    (said,) = (note for note in read_megatron(f"{loops}\n{LINE}", H100).notes if "Set in loops" in note)
    assert "NAME_7" in said and "NAME_8" not in said


# ----------------------------------------------------------------------------------------- flags of forks


@pytest.mark.parametrize(
    "flags, changed",
    [
        ("--checkpoint-activations", {"recompute": "full"}),
        ("--deepspeed --zero-stage 1", {"zero": 1}),
        ("--deepspeed --zero-stage 3", {"zero": 3}),
        ("--zero-stage 3", {}),  # without DeepSpeed nobody reads it
        ("--deepspeed --num-experts 8 --moe-expert-parallel-size 4", {"ep": 4}),
        ("--model-parallel-size 2", {"tp": 2, "dp": 8}),
        ("--batch-size 4", {"micro_batch": 4}),
    ],
)
def test_what_decides_a_plan_in_a_fork_is_translated(flags, changed):
    assert read(f"{LINE} {flags}").plan == replace(read(LINE).plan, **changed)


def test_sizes_of_experts_and_of_latent_attention_in_pai_megatron_patchs_words_are_known():
    moe = "--num-experts 8 --moe-topk 4 --shared-moe-ffn-hidden-size 5632"
    shape = read(
        f"{LINE} {moe} --multi-latent-attention --qk-nope-head-dim 96 --qk-rope-head-dim 32"
    ).job.shape
    assert shape.experts and (shape.experts.top_k, shape.experts.shared_ffn) == (4, 5632)
    assert shape.latent and (shape.latent.nope_dim, shape.latent.rope_dim) == (96, 32)


@pytest.mark.parametrize("flag", ["--deepspeed_config ds.json", "--enable-zbh1-pipeline", "--cpu-optimizer"])
def test_what_of_a_fork_changes_the_step_has_a_note_of_its_own(flag):
    notes = read(f"{LINE} --deepspeed {flag}").notes
    assert any(note.startswith(f"{flag.split()[0]} is not modelled: ") for note in notes)
    assert not any(f"no {flag.split()[0]}" in note for note in notes)


def test_geglu_of_a_fork_is_a_gate_and_a_third_matrix():
    assert read(f"{LINE} --geglu").job.shape.activation == "geglu"


def test_a_model_that_transformers_builds_is_refused_and_its_config_asked_for():
    with pytest.raises(UserError, match="--transformer-type huggingface takes its model from transformers"):
        read(f"{LINE} --transformer-type huggingface")
    assert read(f"{LINE} --transformer-type megatron").plan == read(LINE).plan


def test_megatron_deepspeed_has_experts_in_every_second_layer_and_one_for_a_token():
    experts = read(f"{LINE} --deepspeed --num-experts 8").job.shape.experts
    assert experts and experts.top_k == 1 and len(experts.dense_layers) == 16
    chosen = read(f"{LINE} --deepspeed --topk 2 --num-experts 8 --expert-interval 1").job.shape.experts
    assert chosen and chosen.top_k == 2 and not chosen.dense_layers


def test_ulysses_of_megatron_deepspeed_is_context_parallelism_by_heads():
    found = read(f"{LINE} --ds-sequence-parallel-size 4")
    assert (found.plan.cp, found.job.stack.context_parallel) == (4, "all-to-all")


def test_the_command_line_takes_settings_and_arguments(tmp_path, capsys):
    file = tmp_path / "launch.sh"
    file.write_text(BY_IF)
    asked = ["plan", "--from-megatron", str(file), "--emit", "megatron"]
    for given in (["--set", "2=70B"], ["--script-arguments", "dsw 70B"], ["--set", "LAYERS=80"]):
        assert main([*asked, *given]) == 0
        assert "--num-layers 80" in capsys.readouterr().out
    for given, said in (
        (["--set", "LAYERS"], "write NAME=VALUE"),
        (["--set", "a b=1"], "write NAME=VALUE"),
        (["--script-arguments", "'a"], "never closed"),
    ):
        assert main([*asked, *given]) == 2
        assert said in capsys.readouterr().err
    assert main(["plan", "--model", "gpt2", "--gpus", "8", "--global-batch", "8", "--set", "A=1"]) == 2
    assert "name it with --from-megatron" in capsys.readouterr().err


@pytest.mark.parametrize(
    "script",
    [
        'A=4; [ -z "$A" ] && A=2',
        'A=4; [ -z "$B" ] && A=2',
        'A=4; [[ -n "$A" ]] || A=2',
        "A=1\n[ $A -eq 1 ] && A=5 || A=6",
        "A=1\n[ $A -eq 2 ] && A=5 || A=6",
        "A=1\ntest $A -gt 0 && A=7",
        "A=1; cd / && A=3",
        "A=1; true || A=9",
        'A=1; ! [ -z "$A" ] && A=2',
        "A=1; [ $A -eq 1 ] &&\n A=4",
        "A=1; (( A > 0 && A < 3 )) && A=5",
        "A=1; [[ -v A ]] && A=5",
        "A=1; if [[ -v B ]]; then A=5; else A=6; fi",
        "N=8; if (( N > 4 )); then A=2; else A=3; fi",
        "N=8; if (( N % 3 == 2 && ($N / 4) >= 2 || N == 0 )); then A=2; else A=3; fi",
        "N=8; if (( N < 4 )) || [ $N = 8 ]; then A=2; else A=3; fi",
        "N=0; if (( $N )); then A=2; elif (( $# == 0 )); then A=4; fi",
        "A=1; while [[ $# -gt 0 ]]; do A=2; shift; done",
        'A=1; while [ -n "$1" ] && [ "$1" != "" ]; do case $1 in --a) A=$2 ;; esac; shift 2; done',
        "A=1; until (( A > 0 )); do A=2; done",
        "A=4; (( A *= 2 + 1 )); ((A++))",
        'A=4; let A=A*2; let "A -= 1"',
        "A=1; if true; then if [ $A -eq 2 ]; then A=3; fi; A=4; fi",
        "A=1; if [ $A -eq 2 ]; then A=3; else if [ $A -eq 1 ] || false; then A=5; fi; fi",
        "A=1; case $A in 1) if false || [ $A -eq 1 ]; then A=6; fi ;; *) A=7 ;; esac",
        "A=1; [ $A -eq 2 ] && { A=3; A=4; }",
        "A=1; [ $A -eq 1 ] && { A=3; B=4; } && A=$B$A",
        "A=1; false && if true; then A=2; fi",
        "A=1; false && case 1 in 1) if true; then A=2; fi ;; esac",
        "A=1; if false; then A=2; fi; ! true && A=3",
        "A=1; ! ! [ $A -eq 1 ] && A=2",
        "f() { A=2; }; f; function g\n{\n A=${A}3\n}; g",
        "A=1; if false; then for A in 4 8; do B=1; done; fi; for A in 1; do B=2; done",
        'A=1; { A=2; }; if [ $A = 1 ]; then { A=3; }; fi; : "}"',
        "N=0x10; M=3*2; A=$((-M % 4 + N))",
    ],
)
def test_bash_agrees_on_tests_arithmetic_and_loops_that_do_not_begin(script):
    done = subprocess.run(["bash", "-c", f'{script}\necho "$A"'], capture_output=True, text=True, check=True)
    assert read_script(script).variables["A"] == [done.stdout.strip()]


def test_a_comparison_with_what_is_no_number_is_not_known():
    """bash: an error, and the other branch."""
    for test in ("$A -eq 1", "1 -eq $A", "$A -gt $A"):
        assert "$" in read_script(f"A=x B=1; if [ {test} ]; then B=2; fi").variables["B"][0]


def test_the_number_of_a_scripts_arguments_is_the_last_ones():
    given = {"1": "a", "2": "b", "3": "c"}
    assert read_script("N=$#; if [ $# -ge 3 ]; then N=x$N; fi", given).variables["N"] == ["x3"]


def test_a_case_of_what_is_not_known_leaves_open_what_its_branches_set():
    for script in ("case $SIZE in 7B) A=2 ;; esac", "case 7B in $SIZE) A=2 ;; esac"):
        assert "$" in read_script(f"A=1; {script}").variables["A"][0]


def test_another_shells_variables_are_not_the_scripts(tmp_path):
    (tmp_path / "model.sh").write_text("A=2")
    for line, value in (("bash model.sh", "1"), ("source model.sh", "2"), (". ./model.sh", "2")):
        assert read_script(f"A=1\n{line}", folder=tmp_path).variables["A"] == [value]


def test_a_number_that_begins_with_0_is_octal_in_a_sum_and_left_as_it_is():
    """bash: 9, and an error for 08."""
    assert read_script("N=010; A=$((N + 1))").variables["A"] == ["$((N + 1))"]
    assert read_script("N=08; A=$((N + 1))").variables["A"] == ["$((N + 1))"]


def test_a_loops_variable_is_asked_for_though_it_was_set_before():
    text = f"LAYERS=16\nfor LAYERS in 4 8; do\n{SIZED}\ndone"
    with pytest.raises(UserError, match="give --set LAYERS=VALUE"):
        read(text)
    assert read(text, LAYERS="8").job.shape.layers == 8


def test_what_a_command_would_print_stays_one_word_where_its_variable_is_not_quoted():
    with pytest.raises(
        UserError, match=r"--num-layers must be a whole number, not '\$\(jq -r .layers c.json\)'"
    ):
        read(f"LAYERS=$(jq -r .layers c.json)\n{SIZED}")


def test_a_loop_over_arguments_that_are_given_leaves_what_it_may_set_unknown():
    loop = "LAYERS=16; while (( $# > 0 )); do LAYERS=$1; shift; done\n" + SIZED
    assert read(loop).job.shape.layers == 16
    with pytest.raises(UserError, match="give --set LAYERS=VALUE"):
        read(loop, **{"1": "8"})


@pytest.mark.parametrize("output", ["$(nproc --all | wc -l)", "$((($(nvidia-smi --list | wc -l)-2)))"])
def test_what_a_command_would_print_is_one_word_and_none_of_its_options_is_the_launchs(output):
    script = f"N={output} ; {LINE} --num-workers $N $([ -n x ] && echo --swiglu)"
    found = read(script)
    assert found.job.shape.activation == "gelu"
    assert not {"--all", "--list"} & {word.strip(",") for note in found.notes for word in note.split()}


@pytest.mark.parametrize(
    "flags, said",
    [
        ("--deepspeed --zero-stage $STAGE", r"--zero-stage must be 0, 1, 2 or 3.* --set STAGE=VALUE"),
        ("--num-experts 8 --moe-layer-freq $FREQUENT", r"--moe-layer-freq .* --set FREQUENT=VALUE"),
        ("--normalization ${NORM}", r"--normalization must be a word.* --set NORM=VALUE"),
        ("--hidden-dropout $RATE", r"--hidden-dropout must be a number.* --set RATE=VALUE"),
    ],
)
def test_a_variable_that_is_not_set_is_asked_for_by_its_name_whatever_its_flag_takes(flags, said):
    with pytest.raises(UserError, match=said):
        read(f"{LINE} {flags}")


def test_flags_that_no_command_takes_and_scripts_that_are_not_read_are_named():
    with pytest.raises(UserError, match="^MODEL_ARGS has flags .* no command here takes them"):
        read("MODEL_ARGS=(--num-layers 2 --hidden-size 64)")
    launch = f'source "$(dirname "$0")/models/small.sh"\n{SIZED}'
    with pytest.raises(UserError, match="--set LAYERS=VALUE.* Included and not found: 'small.sh'"):
        read(launch)
    assert "Included and not found: 'small.sh'" in read(launch, LAYERS="8").notes[0]
    assert not [note for note in read(f"source venv/bin/activate\n{LINE}").notes if "Included" in note]


# ------------------------------------------------------------------------------------------- files included


@pytest.mark.parametrize(
    "line",
    [
        'DIR="$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)"\nsource "${DIR}/models/small.sh"',
        'source "$(dirname "$0")/models/small.sh"',
        ". models/small.sh",
        "SIZE=small\nsource scripts/models/$SIZE.sh",
        "source `dirname $0`/models/small.sh",
    ],
)
def test_what_a_script_includes_is_read_in_its_place_where_it_lies_beside(line, tmp_path):
    folder = tmp_path / "scripts"
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "small.sh").write_text("LAYERS=8; MORE=(--num-query-groups 8)")
    found = read_megatron(f"LAYERS=4\n{line}\n{SIZED} ${{MORE[@]}}", H100, Beside(folder=folder))
    assert found.job.shape == read(f"{SIZED} --num-query-groups 8", LAYERS="8").job.shape
    assert f"Included and read: '{folder / 'models' / 'small.sh'}'" in found.notes[0]


def test_whether_a_script_is_there_that_is_included_is_seen_and_else_it_is_not_known(tmp_path):
    (tmp_path / "small.sh").write_text("LAYERS=8")
    there, gone = (
        f"LAYERS=4\nif [ -f {name} ]; then source {name}; fi\n{SIZED}" for name in ("small.sh", "gone.sh")
    )
    assert read_megatron(there, H100, Beside(folder=tmp_path)).job.shape.layers == 8
    assert "Included and not found: 'gone.sh'" in read_megatron(gone, H100, Beside(folder=tmp_path)).notes[0]
    with pytest.raises(UserError, match="--set LAYERS=VALUE"):
        read_megatron(f"LAYERS=4\nif $HERE; then source small.sh; fi\n{SIZED}", H100, Beside(folder=tmp_path))


@pytest.mark.parametrize(("name", "layers"), [
    ("config.env", 8), (".env", 8), ("small.cfg", 8), ("activate", 4), ("notes.txt", 4),
])  # fmt: skip
def test_a_file_of_variables_is_read_whose_ending_says_so(name, layers, tmp_path):
    (tmp_path / name).write_text("export LAYERS=8  # of the small one")
    found = read_megatron(f"LAYERS=4\nset -a; . ./{name}; set +a\n{SIZED}", H100, Beside(folder=tmp_path))
    assert found.job.shape.layers == layers


def test_a_script_that_includes_itself_is_read_once_and_what_is_wrong_in_it_has_its_name(tmp_path):
    own = tmp_path / "own.sh"
    own.write_text(f"LAYERS=8\nsource {own}\n{SIZED}")
    assert read_megatron(own.read_text(), H100, Beside(folder=tmp_path)).job.shape.layers == 8
    own.write_text("echo '")
    with pytest.raises(UserError, match=r"own\.sh: the quotation mark in line 1 is never closed"):
        read_megatron(f"source {own}\n{SIZED}", H100, Beside(folder=tmp_path))
    own.unlink()
    own.mkdir()
    with pytest.raises(UserError, match="Included and not found: 'own.sh'"):
        read_megatron(f"source {own}\n{SIZED}", H100, Beside(folder=tmp_path))
