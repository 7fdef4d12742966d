"""A pytest plugin for other people's tests, which limits how often ``torch.compile`` compiles.

Installed with the package and found by pytest itself. A suite that uses neither the fixture nor the mark does not
notice it; torch is imported by the first test that does.

Examples
--------
A test with a limit, and one that looks closer::

    @pytest.mark.compiles(at_most=2)
    def test_serving_uses_two_graphs(): ...

    def test_steady_state(recompiles):
        warm_up()
        with recompiles(label="steady") as seen:
            serve()
        seen.expect(compiles=0)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from neuron_lab.recompiles import Recompiles

__all__ = ["recompiles"]

_MARK = "compiles"


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known, for suites with ``--strict-markers``."""
    config.addinivalue_line(
        "markers",
        f"{_MARK}(at_most): torch.compile may compile so often during the test, from a clean slate (neuron-lab)",
    )


def _limit(mark: pytest.Mark) -> int:
    limit: Any = mark.kwargs.get("at_most", mark.args[0] if len(mark.args) == 1 else None)
    unknown = set(mark.kwargs) - {"at_most"}
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0 or unknown or len(mark.args) > 1:
        raise pytest.UsageError(
            f"@pytest.mark.{_MARK} takes one count, at_most=0 or more; got args {mark.args!r}, kwargs {mark.kwargs!r}"
        )
    return limit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Any:
    """Count during a marked test, and fail it with the table.

    It starts with nothing compiled: what an earlier test compiled must not make this one pass.
    """
    mark = item.get_closest_marker(_MARK)
    if mark is None:
        return (yield)
    limit = _limit(mark)
    import torch

    from neuron_lab.recompiles import count_recompiles

    torch.compiler.reset()
    with count_recompiles(label=item.name) as seen:
        result = yield
    if len(seen.compiles) > limit or seen.fell_back_to_eager:
        more = f"{len(seen.compiles)} compiles, at most {limit} allowed"
        if seen.fell_back_to_eager:
            more += "; a function reached the recompile limit and runs eagerly"
        pytest.fail(f"{more}\n{seen!r}", pytrace=False)
    return result


@pytest.fixture
def recompiles() -> Iterator[Callable[..., Recompiles]]:
    """Give :func:`neuron_lab.count_recompiles`, from a clean slate: ``torch.compiler.reset()`` has been called."""
    import torch

    from neuron_lab.recompiles import count_recompiles

    torch.compiler.reset()
    yield count_recompiles
