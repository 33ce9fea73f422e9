"""One part at a time.

Most of the memory of a training step is activations: what the forward pass keeps for the
backward pass. A batch can be taken in parts, microbatches, whose gradients add up to the
batch's own. The program below does take it in four parts, and needs as much memory as ever:

        activations      part 0
                         part 0  part 1
                         part 0  part 1  part 2
                         part 0  part 1  part 2  part 3        all four are kept when the backward pass begins

Given   replica.steps()                     yields the numbers of a step's microbatches, step by step
        replica.forward(microbatch)         keeps activations
        replica.backward(microbatch)        adds to the gradients, and gives the activations back
        replica.optimizer_step()            steps the weights with the gradients as they are

Right is every gradient of the whole batch at once. Then the memory counts: a quarter of the
activations will do.
"""

from gpu import GPU
from ndparallel.exercises.exercise import Attempt, Exercise
from ndparallel.exercises.runs import in_lesson, right_everywhere
from ndparallel.lessons.registry import full_name, load
from ndparallel.model.units import ModelConfig
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from ndparallel.training.replica import Outcome, Replica


def train(gpu: GPU, job: Job) -> Outcome:
    """Train on the batch in parts. This one keeps the activations of all parts: change it."""
    replica = Replica(gpu, job)
    for microbatches in replica.steps():
        for microbatch in microbatches:
            replica.forward(microbatch)
        for microbatch in microbatches:
            replica.backward(microbatch)
        replica.optimizer_step()
    return replica.outcome


def attempt(answer) -> Attempt:
    def program(gpu: GPU, job: Job) -> Outcome:
        return answer.on(gpu.rank).train(gpu, job)

    def run(parts: int, layers: int) -> Attempt:
        job = Job(model=ModelConfig(layers=layers), batch=2 * parts, microbatches=parts)
        return in_lesson(program, job, Mesh(), ("step_seconds", "peak_memory_bytes"), meaning=meaning)

    return right_everywhere(run, "With {} microbatches and {} layers", (4, ModelConfig.layers), (3, 2))


def meaning(times: float) -> str:
    return (
        "Not every part's gradient is in it, once. The optimizer takes what is there when it steps: let it "
        "step once, after the last part's backward pass."
    )


def over_par(yours: Attempt, par: Attempt) -> str:
    if yours.figures["peak_memory_bytes"] > par.figures["peak_memory_bytes"]:
        return "Activations of several parts are kept at once: nothing needs part 1 before part 0 is done."
    return "Something is computed twice: each part goes forward once and backward once."


EXERCISE = Exercise(
    file=__file__,
    chapter="0D",
    minutes=5,
    asks={"train": load(full_name("0d")).strategy("4 microbatches").program},
    attempt=attempt,
    hints=(
        "When does the backward pass of a part become possible?",
        "Right after its own forward pass. Only the gradients must wait for the other parts.",
        "One loop over the microbatches: forward, then backward of the same one. Behind the loop, one step.",
    ),
    learned="gradients add up, so a batch in M parts needs the activations of one part, and the same time.",
    page="docs/book/0d.md",
    over_par=over_par,
    known_better="A batch in more and smaller parts needs even less memory. Here it was given in four.",
)
