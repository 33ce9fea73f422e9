"""Wrong and slow answers to `sum_that_can_wait`. The docstring of each is in what its reader is told."""

from collectives import Group, all_reduce


def waits_at_once(gpu, mlp, dz, tp):
    """The GPU stands idle while the sum travels"""
    dx = all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return dx


def weights_first(gpu, mlp, dz, tp):
    """which matmul does not need it?"""
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def never_waits(gpu, mlp, dz, tp):
    """the gradient of x is wrong"""
    dx = mlp.matmul("dx", dz, mlp.a.weight.T)
    all_reduce(gpu, dx, tp, async_op=True)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return dx


def sums_the_weights(gpu, mlp, dz, tp):
    """it is added to mlp.a.gradient, and not summed over GPUs"""
    dx = all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp, async_op=True)
    mlp.a.gradient += all_reduce(gpu, mlp.matmul("da", mlp.x.T, dz), tp)
    return dx.wait()


def returns_the_handle(gpu, mlp, dz, tp):
    """returned a Handle, and no gradient of x"""
    dx = all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp, async_op=True)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return dx


def writes_the_gradient_over(gpu, mlp, dz, tp):
    """It lacks what the pass before has left there: add your gradient to it, with +=."""
    dx = all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp, async_op=True)
    mlp.a.gradient[:] = mlp.matmul("da", mlp.x.T, dz)
    return dx.wait()


def over_four_gpus(gpu, mlp, dz, tp):
    """With 2 GPUs and 2 passes a step:"""
    tp = Group("tp", (0, 1, 2, 3))
    dx = all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp, async_op=True)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return dx.wait()


def forgets_to_transpose(gpu, mlp, dz, tp):
    """backward first: arrays of shapes (512, 22) and (32, 22) cannot be multiplied. Is one of them to be"""
    return mlp.matmul("backward first", dz, mlp.a.weight)
