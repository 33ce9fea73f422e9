"""Wrong and slow answers to `columns_then_rows`. The docstring of each is in what its reader is told."""

import numpy as np

from collectives import Group, all_reduce


def forgets_to_sum_y(gpu, mlp, tp):
    """was y summed before mlp.loss_gradient(y)?"""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = mlp.matmul("y", h, mlp.b.weight)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("db", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def forgets_to_sum_dx(gpu, mlp, tp):
    """so dz A^T is a part of every number: sum it over the GPUs, and wait"""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("y", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("db", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return mlp.matmul("dx", dz, mlp.a.weight.T)


def multiplies_beside_the_clock(gpu, mlp, tp):
    """the clock of GPU 0 knows of 8 kernels, where a pass has 9"""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, h @ mlp.b.weight, tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("db", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def returns_nothing(gpu, mlp, tp):
    """and no gradient of x: return dz A^T, of shape"""
    forgets_to_sum_dx(gpu, mlp, tp)


def sums_the_gradient_of_b_too(gpu, mlp, tp):
    """gradient of b"""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("y", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += all_reduce(gpu, mlp.matmul("db", h.T, dy), tp)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def gathers_nothing_but_sums_dh(gpu, mlp, tp):
    """GPU 0, gradient of a"""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("y", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("db", h.T, dy)
    dh = all_reduce(gpu, mlp.matmul("dh", dy, mlp.b.weight.T), tp)
    dz = mlp.relu_backward(dh, z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def puts_other_gradients_in_place(gpu, mlp, tp):
    """It lacks what the pass before has left there: add your gradient to it, with +=."""
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("y", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient = mlp.matmul("db", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient = mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def over_four_gpus(gpu, mlp, tp):
    """With 2 GPUs and 2 passes a step:"""
    tp = Group("tp", (0, 1, 2, 3))
    z = mlp.matmul("z", mlp.x, mlp.a.weight)
    h = mlp.relu(z)
    y = all_reduce(gpu, mlp.matmul("y", h, mlp.b.weight), tp)
    dy = mlp.loss_gradient(y)
    mlp.b.gradient += mlp.matmul("db", h.T, dy)
    dz = mlp.relu_backward(mlp.matmul("dh", dy, mlp.b.weight.T), z)
    mlp.a.gradient += mlp.matmul("da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("dx", dz, mlp.a.weight.T), tp)


def forgets_dx(gpu, mlp, tp):
    """GPU 0 returned a NoneType, and no gradient of x"""
    forgets_to_sum_dx(gpu, mlp, tp)


def adds_nothing(gpu, mlp, tp):
    """It is zero: nothing was added to it"""
    return mlp.matmul("forward z", mlp.x, mlp.a.weight)


def relu_beside_the_clock(gpu, mlp, tp):
    """the clock of GPU 0 knows of 7 kernels, where a pass has 9"""
    z = mlp.matmul("forward z", mlp.x, mlp.a.weight)
    h = np.maximum(z, 0)
    dy = mlp.loss_gradient(all_reduce(gpu, mlp.matmul("forward y", h, mlp.b.weight), tp))
    mlp.b.gradient += mlp.matmul("backward db", h.T, dy)
    dz = mlp.matmul("backward dh", dy, mlp.b.weight.T) * (z > 0)
    mlp.a.gradient += mlp.matmul("backward da", mlp.x.T, dz)
    return all_reduce(gpu, mlp.matmul("backward dx", dz, mlp.a.weight.T), tp)
