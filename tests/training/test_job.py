"""Claims about jobs that cannot be, at the place where they are made."""

import pytest

from ndparallel.base.errors import UserError
from ndparallel.parallel.mesh import Mesh
from ndparallel.training.job import Job
from tests.support.common import SMALL


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mesh": Mesh(pp=64), "microbatches": 64, "batch": 64}, "layers cannot fill 64 stages"),
        ({"mesh": Mesh(pp=2), "schedule": "interleaved", "stage_chunks": 2, "microbatches": 1}, "microbatch"),
        (
            {"mesh": Mesh(pp=2), "microbatches": 10**9, "batch": 10**9},
            "takes more than .* steps: choose fewer",
        ),
    ],
)
def test_a_pipeline_that_cannot_be_cut_or_scheduled_is_refused_when_its_job_is_made(options, says):
    with pytest.raises(UserError, match=says):
        Job(model=SMALL, **options)


def test_experts_that_ranks_cannot_share_name_the_degrees_that_can():
    with pytest.raises(UserError, match="ep can be 1, 2, 4"):
        Job(model=SMALL.replace(experts=4), mesh=Mesh(dp=3, ep=3), batch=3)


def test_a_sequence_that_cannot_be_cut_is_told_with_the_nearest_that_can():
    """Into an early and a late piece for each of 3 ranks: multiples of 6, of which 18 is next to 16."""
    with pytest.raises(
        UserError, match=r"into 6 pieces.*the nearest sequence that can is 18 \(--sequence 18\)"
    ):
        Job(model=SMALL.replace(sequence=16), mesh=Mesh(cp=3))


def test_more_rows_of_an_expert_than_an_int32_counts_are_refused_with_their_number():
    """2^20 sequences of 2^18 tokens, on 2 x 2 GPUs, in 2 microbatches, for 2 experts: 2^34 each."""
    model = SMALL.replace(experts=2, top_k=1, sequence=2**18)
    with pytest.raises(UserError, match="every expert gets 17,179,869,184 rows of each GPU"):
        Job(model=model, mesh=Mesh(dp=2, cp=2), batch=2**20, microbatches=2)
