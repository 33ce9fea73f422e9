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
