"""The device across processes, signals and the end of the interpreter."""

from __future__ import annotations


def test_forks_while_threads_allocate(python):
    """A lock of ours that another thread holds at that moment must not stay locked in the child."""
    done = python(
        """
        import gc, os, threading, time
        import torch
        import torch_neuronx
        stop = False
        def work():
            while not stop:
                y = torch.ones(100, device="neuron") + 1
                z = torch.nn.functional.dropout(y, 0.5)
                del y, z
        threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
        [thread.start() for thread in threads]
        x, hung, wrong = torch.ones(4, device="neuron"), 0, 0
        for _ in range(100):
            if hung:
                break
            child = os.fork()
            if child == 0:
                del x
                gc.collect()
                torch.manual_seed(0)
                torch.get_rng_state()
                torch.neuron.memory_allocated()
                torch_neuronx.get_executed_ops()
                refused = 0
                for attempt in (lambda: torch.ones(1, device="neuron"), torch.neuron.get_rng_state):
                    try:
                        attempt()
                    except RuntimeError as error:
                        refused += "forked subprocess" in str(error)
                os._exit(0 if refused == 2 else 1)
            end = time.monotonic() + 20
            done, status = 0, 0
            while not done and time.monotonic() < end:
                done, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if not done:
                hung += 1
                os.kill(child, 9)
                os.waitpid(child, 0)
            wrong += status != 0
        stop = True
        [thread.join() for thread in threads]
        assert (x + 1).sum().item() == 8
        print(hung, wrong)
        os._exit(0)
        """,
        timeout=300,
    )
    assert done.stdout.split() == ["0", "0"]


def test_interrupts_in_the_middle_of_operators(python):
    """A notebook's stop button, a few hundred times: nothing leaks, nothing stays locked."""
    done = python(
        """
        import gc, os, random, signal, threading, time
        import torch
        import torch.nn.functional as F
        torch.set_num_threads(1)
        graph = torch.compile(lambda x: F.dropout(x, 0.5) @ x, backend="neuron", dynamic=False)
        weight = torch.ones(100, 100, device="neuron", requires_grad=True)
        armed, finished, caught, other = False, False, 0, []
        def shoot():
            global finished
            rng = random.Random(0)
            for _ in range(300):
                time.sleep(rng.random() * 0.01)
                if armed:
                    os.kill(os.getpid(), signal.SIGINT)
            finished = True
        def step():
            x = F.dropout(weight, 0.5) @ weight
            y = graph(x) + F.rrelu(x, training=True)
            y.sum().backward()
            return y[0, 0].item()
        for _ in range(2):  # compiles; an interrupt while PyTorch itself compiles can abort the process, on any device
            step()
        weight.grad = None
        gc.collect()
        before = torch.accelerator.memory_allocated()
        threading.Thread(target=shoot, daemon=True).start()
        while not finished:
            try:
                armed = True
                while not finished:
                    step()
            except KeyboardInterrupt:
                armed = False
                caught += 1
            except Exception as error:
                armed = False
                other.append(repr(error))
        weight.grad = None
        gc.collect()
        assert not other, other[:3]
        assert torch.accelerator.memory_allocated() == before
        torch.manual_seed(0)
        want = torch.rand(3)
        torch.manual_seed(0)
        graph(weight)
        assert torch.equal(torch.rand(3), want)
        print(caught)
        """
    )
    assert int(done.stdout) > 20


def test_the_end_of_the_interpreter(python):
    """Tensors, streams, graphs and generators that live to the end, in cycles, in threads and in atexit."""
    done = python(
        """
        import atexit, threading, time
        import torch
        kept = torch.ones(3, device="neuron")
        graph = torch.compile(lambda x: x * 2, backend="neuron", dynamic=False)
        graph(kept)
        atexit.register(lambda: print("atexit", graph(kept + 1).sum().item()))
        class Holder:
            def __del__(self):
                print("finaliser", self.tensor.sum().item())
        holder = Holder()
        holder.tensor, holder.me = torch.ones(2, device="neuron"), holder
        kinds = [torch.Generator("neuron"), torch.Stream(device="neuron"), torch.Event(device="neuron")]
        leaf = torch.ones(2, device="neuron", requires_grad=True)
        loss = (leaf * 2).sum()
        def work():
            time.sleep(0.3)
            print("thread", torch.ones(2, device="neuron").sum().item())
        threading.Thread(target=work).start()
        """
    )
    # The cycle is never collected: what matters is that the interpreter ends all the same.
    assert done.stdout.split()[:4] == ["thread", "2.0", "atexit", "12.0"]
    assert done.stderr == ""
