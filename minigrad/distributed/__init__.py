"""Several processes that train one model, over MPI: `pip install minigrad[mpi]`, and `mpirun -n 4 python train.py` or
`python -m minigrad launch -n 4 train.py`.

    from minigrad import distributed

    distributed.init()
    distributed.broadcast(model.parameters())            # all begin with the weights of rank 0
    loader = DataLoader(data, 32, sampler=DistributedSampler(data))

    @jit
    def step(x, y):
        loss = model(x).cross_entropy(y).backward()
        distributed.average_gradients(model.parameters())
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

In one process alone each of these does nothing, and no MPI is imported. Every process must call the same functions with
tensors of the same shapes and dtypes; results are the same in all of them, bit for bit, and in every run.
"""
from minigrad.distributed.collectives import all_gather, all_reduce, barrier, broadcast, reduced
from minigrad.distributed.gradients import average_gradients
from minigrad.distributed.group import end_all, init, is_initialized, local_rank, rank, size

get_rank, get_world_size = rank, size

__all__ = ["all_gather", "all_reduce", "average_gradients", "barrier", "broadcast", "end_all", "get_rank",
           "get_world_size", "init", "is_initialized", "local_rank", "rank", "reduced", "size"]
