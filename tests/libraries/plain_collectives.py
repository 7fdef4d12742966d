"""Every collective on the backend ``neuron``, against results worked out by hand. Run by torchrun on 2 or 4 ranks."""

from __future__ import annotations

import json

import torch
import torch.distributed as dist

torch.set_num_threads(1)
dist.init_process_group("neuron")
RANK, SIZE = dist.get_rank(), dist.get_world_size()
OTHERS = range(SIZE)
FLOATS = (torch.float32, torch.bfloat16)
TYPES = (*FLOATS, torch.int64, torch.int32, torch.uint8)
done: list[str] = []


def mine(rank: int = RANK, dtype: torch.dtype = torch.float32, length: int = 6) -> torch.Tensor:
    """What a rank brings: different for each rank and place, exact in every type."""
    return (torch.arange(length) + 3 * rank + 1).to(dtype).to("neuron")


def same(found: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    assert found.device == torch.device("neuron", torch.accelerator.current_device_index()), (what, found.device)
    torch.testing.assert_close(found.cpu(), expected.cpu(), rtol=0, atol=0, msg=lambda text: f"{what}: {text}")
    done.append(what)


def stacked(dtype: torch.dtype) -> torch.Tensor:
    return torch.stack([mine(rank, dtype) for rank in OTHERS])


def test_all_reduce() -> None:
    for dtype in TYPES:
        pieces = stacked(dtype).cpu()
        for op, expected in {
            dist.ReduceOp.SUM: pieces.sum(0),
            dist.ReduceOp.MAX: pieces.amax(0),
            dist.ReduceOp.MIN: pieces.amin(0),
            dist.ReduceOp.PRODUCT: pieces.prod(0) if dtype not in (torch.uint8, torch.bfloat16) else None,
            dist.ReduceOp.AVG: pieces.float().mean(0).to(dtype) if dtype in FLOATS else None,
        }.items():
            if expected is None:
                continue
            x = mine(dtype=dtype)
            dist.all_reduce(x, op)
            same(x, expected.to(dtype), f"all_reduce {str(op).rpartition('.')[2]} {dtype}")
    truth = torch.tensor([True, RANK == 0, False], device="neuron")
    dist.all_reduce(truth, dist.ReduceOp.MAX)
    same(truth, torch.tensor([True, True, False]), "all_reduce MAX bool")
    truth = torch.tensor([True, RANK == 0, False], device="neuron")
    dist.all_reduce(truth, dist.ReduceOp.MIN)
    same(truth, torch.tensor([True, False, False]), "all_reduce MIN bool")
    view = torch.zeros(4, 6, device="neuron")
    view[2] = mine()
    dist.all_reduce(view[2])
    same(
        view,
        torch.stack([torch.zeros(6), torch.zeros(6), stacked(torch.float32).cpu().sum(0), torch.zeros(6)]),
        "a view",
    )


def test_gathering() -> None:
    for dtype in (*TYPES, torch.bool):
        pieces = stacked(dtype)
        x = mine(dtype=dtype)
        parts = [torch.empty_like(x) for _ in OTHERS]
        dist.all_gather(parts, x)
        same(torch.stack(parts), pieces, f"all_gather {dtype}")
        flat = torch.empty(SIZE * 6, dtype=dtype, device="neuron")
        dist.all_gather_into_tensor(flat, x)
        same(flat, pieces.flatten(), f"all_gather_into_tensor {dtype}")
        for root in OTHERS:
            parts = [torch.empty_like(x) for _ in OTHERS] if root == RANK else None
            dist.gather(x, parts, dst=root)
            if parts:
                same(torch.stack(parts), pieces, f"gather {dtype}")


def test_reducing() -> None:
    for dtype in TYPES:
        whole = torch.arange(SIZE * 3, dtype=dtype, device="neuron") + RANK
        total = sum(torch.arange(SIZE * 3) + rank for rank in OTHERS)
        here = total[RANK * 3 : RANK * 3 + 3].to(dtype)
        out = torch.empty(3, dtype=dtype, device="neuron")
        dist.reduce_scatter_tensor(out, whole)
        same(out, here, f"reduce_scatter_tensor {dtype}")
        dist.reduce_scatter(out.zero_(), list(whole.chunk(SIZE)))
        same(out, here, f"reduce_scatter {dtype}")
        if dtype in FLOATS:
            dist.reduce_scatter_tensor(out, whole, op=dist.ReduceOp.AVG)
            same(out, (total[RANK * 3 : RANK * 3 + 3] / SIZE).to(dtype), f"reduce_scatter_tensor AVG {dtype}")
        for root in OTHERS:
            x = mine(dtype=dtype)
            dist.reduce(x, dst=root)
            if root == RANK:
                same(x, stacked(dtype).cpu().sum(0).to(dtype), f"reduce {dtype}")


def test_from_one() -> None:
    for dtype in (*TYPES, torch.bool):
        for root in OTHERS:
            x = mine(dtype=dtype)
            dist.broadcast(x, src=root)
            same(x, mine(root, dtype), f"broadcast {dtype}")
            out = torch.zeros(6, dtype=dtype, device="neuron")
            dist.scatter(out, [mine(rank, dtype) for rank in OTHERS] if root == RANK else None, src=root)
            same(out, mine(dtype=dtype), f"scatter {dtype}")


def test_point_to_point() -> None:
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for dtype in (*TYPES, torch.bool):
        out = torch.zeros(6, dtype=dtype, device="neuron")
        if RANK % 2 == 0:
            dist.send(mine(dtype=dtype), after)
            dist.recv(out, before)
        else:
            dist.recv(out, before)
            dist.send(mine(dtype=dtype), after)
        same(out, mine(before, dtype), f"send and recv {dtype}")
    out = torch.zeros(6, device="neuron")
    works = [dist.isend(mine(), after), dist.irecv(out, before)]
    for work in works:
        work.wait()
    same(out, mine(before), "isend and irecv")
    out.zero_()
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, mine(), after), dist.P2POp(dist.irecv, out, before)]):
        work.wait()
    same(out, mine(before), "batch_isend_irecv")
    if RANK == 0:
        assert dist.recv(out.zero_()) == 1
        same(out, mine(1), "recv from anybody")
    elif RANK == 1:
        dist.send(mine(), 0)


def test_asynchronous() -> None:
    x, flat = mine(), torch.empty(SIZE * 6, device="neuron")
    averaged, part = mine(), torch.empty(6, device="neuron")
    works = [
        dist.all_reduce(x, async_op=True),
        dist.all_gather_into_tensor(flat, mine(), async_op=True),
        dist.all_reduce(averaged, dist.ReduceOp.AVG, async_op=True),
        dist.reduce_scatter_tensor(part, stacked(torch.float32).flatten(), async_op=True),
    ]
    for work in works:
        work.wait()
        assert work.is_completed(), work
    total = stacked(torch.float32).cpu().sum(0)
    same(x, total, "all_reduce async")
    same(flat, stacked(torch.float32).flatten(), "all_gather_into_tensor async")
    same(averaged, total / SIZE, "all_reduce AVG async")
    same(part, mine().cpu() * SIZE, "reduce_scatter_tensor async")
    x = mine()
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda done: done.value()[0] * 2)
    same(future.wait(), 2 * total, "a future")


def test_objects_and_barriers() -> None:
    everybody: list = [None] * SIZE
    dist.all_gather_object(everybody, {"rank": RANK, "text": "n" * (RANK + 1)})
    assert everybody == [{"rank": rank, "text": "n" * (rank + 1)} for rank in OTHERS]
    said = [{"from": RANK} if RANK == 0 else None]
    dist.broadcast_object_list(said, src=0)
    assert said == [{"from": 0}]
    got: list = [None]
    dist.scatter_object_list(got, [f"for {rank}" for rank in OTHERS] if RANK == 0 else None, src=0)
    assert got == [f"for {RANK}"]
    dist.barrier()
    dist.barrier(device_ids=[torch.accelerator.current_device_index()])
    work = dist.barrier(async_op=True)
    work.wait()
    done.extend(["objects", "barrier"])


def test_groups() -> None:
    pairs = [dist.new_group(list(range(start, start + 2))) for start in range(0, SIZE, 2)]
    x = mine()
    dist.all_reduce(x, group=pairs[RANK // 2])
    start = RANK // 2 * 2
    same(x, mine(start).cpu() + mine(start + 1).cpu(), "all_reduce in a group")
    dist.barrier(group=pairs[RANK // 2])


def test_all_to_all() -> None:
    x = torch.arange(SIZE * 2, dtype=torch.float32, device="neuron") + 100 * RANK
    out = torch.empty_like(x)
    parts = [torch.empty(2, device="neuron") for _ in OTHERS]
    if SIZE == 2:
        for call in (lambda: dist.all_to_all_single(out, x), lambda: dist.all_to_all(parts, list(x.chunk(SIZE)))):
            try:
                call()
            except RuntimeError as error:
                assert "supported sizes: 4, 8, 16, or multiples of 32" in str(error), error
            else:
                raise AssertionError("all_to_all over 2 ranks was not refused")
        done.append("all_to_all refused")
        return
    expected = torch.cat([torch.arange(RANK * 2, RANK * 2 + 2) + 100.0 * rank for rank in OTHERS])
    dist.all_to_all_single(out, x)
    same(out, expected, "all_to_all_single")
    dist.all_to_all(parts, list(x.chunk(SIZE)))
    same(torch.cat(parts), expected, "all_to_all")
    # uneven: rank r sends r + 1 numbers to everybody
    sent = torch.full(((RANK + 1) * SIZE,), float(RANK), device="neuron")
    received = torch.empty(sum(rank + 1 for rank in OTHERS), device="neuron")
    dist.all_to_all_single(received, sent, [rank + 1 for rank in OTHERS], [RANK + 1] * SIZE)
    same(received, torch.cat([torch.full((rank + 1,), float(rank)) for rank in OTHERS]), "all_to_all_single uneven")


def test_wrong_device() -> None:
    try:
        dist.all_reduce(torch.ones(2))
    except RuntimeError as error:
        assert "cpu" in str(error).lower(), error
    else:
        raise AssertionError("a CPU tensor was accepted by the neuron group")
    done.append("CPU tensor refused")


for name, test in list(globals().items()):
    if name.startswith("test_"):
        test()
dist.barrier()
dist.destroy_process_group()
if RANK == 0:
    print(json.dumps({"ranks": SIZE, "done": sorted(set(done))}))
