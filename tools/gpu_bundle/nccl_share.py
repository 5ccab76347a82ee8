#!/usr/bin/env python3
"""Tells whether ranks of NCCL can share the GPU of this machine, by torch alone: nccl_share.py [RANKS]

Each rank calls itself a host of its own (NCCL_HOSTID), and each directed pair of neighbors has a communicator, as our
links have (gpipe/distributed/packets/nccl_link.cc). If this fails, our tests over NCCL cannot pass on this machine.
"""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

SIZES = (1, 64 << 10, 1 << 20, 16 << 20)  # in bytes
MESSAGES = 10


def chain(rank, ranks, groups, size):
    """The seconds in which messages of `size` bytes go from rank 0 to the last, one after another."""
    seconds = []
    for number in range(MESSAGES):
        expected = number % 256
        dist.barrier()
        begin = time.perf_counter()
        message = torch.full((size,), expected if rank == 0 else 0, dtype=torch.uint8, device="cuda")
        if rank > 0:
            dist.recv(message, rank - 1, group=groups[rank - 1, rank])
        if rank + 1 < ranks:
            dist.send(message, rank + 1, group=groups[rank, rank + 1])
        torch.cuda.synchronize()
        if not bool((message == expected).all()):
            sys.exit(f"rank {rank}: a message of {size} bytes came with wrong bytes")
        seconds.append(time.perf_counter() - begin)
    return seconds


def run(rank, ranks, port):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks),
                      NCCL_HOSTID=f"gpipe-{rank}", NCCL_SOCKET_IFNAME="lo", NCCL_MNNVL_ENABLE="0",
                      NCCL_RAS_ENABLE="0", NCCL_IB_DISABLE="1")
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    groups = {(k, k + step): dist.new_group([k, k + step]) for k in range(ranks) for step in (1, -1)
              if 0 <= k + step < ranks}
    for size in SIZES:
        seconds = chain(rank, ranks, groups, size)
        if rank == ranks - 1:
            print(f"{size} bytes through {ranks - 1} links: {statistics.median(seconds) * 1e3:.2f} ms", flush=True)
    dist.barrier()
    if rank == 0:
        print(f"{ranks} ranks on {torch.cuda.get_device_name(0)}, NCCL {torch.cuda.nccl.version()}", flush=True)
    dist.destroy_process_group()


def main():
    if not torch.cuda.is_available():
        sys.exit("torch finds no GPU here")
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    mp.spawn(run, (ranks, 29611), nprocs=ranks)


if __name__ == "__main__":
    main()
