"""Guards in words: what changed, from what to what, and what to do about it.

PyTorch says in one line of text which guard failed. This module reads that line. A guard that it does not know comes
out as it went in, with no remedy: a wrong explanation costs more than none.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from neuron_lab.recompiles.events import Cause

__all__ = ["explain", "remedy_for_break"]

PAD = "Pad this dimension to a fixed size, or to one of a few (buckets), before the compiled call."
LAST_BATCH = "The batch got smaller: drop or pad the last batch (DataLoader(drop_last=True)), in evaluation too."
GROWING = "It grows by one with every call: use a static cache of fixed length, and a position held in a tensor."
POSITION = "Hold the position in a tensor (torch.tensor(n, device=...)), not in a Python number."
LEARNING_RATE = "Make the learning rate a tensor: torch.optim.AdamW(..., lr=torch.tensor(1e-3))."
NUMBER = "A Python value is a constant of the graph: pass it as a tensor, or keep it the same."
TEXT = "A Python value is a constant of the graph: expected once per value; keep the number of values small."
HELD = "A number that an object holds is a constant of the graph: if it changes, keep it in a tensor (register_buffer)."
TRAINING = "Training and evaluation are two graphs: expected once each; warm up both."
GRADIENT = "With and without gradients are two graphs: expected once each; call it in one mode only, and warm that up."
DTYPE = "Give it one dtype: convert before the compiled call."
DEVICE = "Keep model and inputs on one device: do not move the live model to save it (copy its state_dict instead)."
STRIDE = "Same shape, other memory layout: call .contiguous() before the compiled call."
RANK = "The number of dimensions changed: give it one (unsqueeze, or a function of its own for each)."
LENGTH = "A container changed its length: give it always as many entries, for example padded with zeros."
MISSING = "An argument comes and goes (None or not): pass a tensor always, or compile each case once and warm up both."
OBJECT = "Another object was passed where a constant was captured: pass the same one, or its tensors as arguments."
BACKEND = "The function was compiled for another backend or other options before: compile it once and reuse the result."
GLOBAL_STATE = "A global switch changed (see its name): set it before the first call and leave it."
THREADS = (
    "The number of threads differs between the calling threads: torch.set_num_threads in each, before the first call."
)
AUTOCAST = "Inside and outside autocast are two graphs: call it in one way only, and warm that up."
SUBCLASS = "The type of an argument changed: pass always the same type."

_COMMENT = re.compile(r"\s{2,}#\s.*$", re.DOTALL)
_ID = re.compile(r"^\s*\d+/\d+:\s*")
_LOCAL = re.compile(r"\b[LG]\[['\"](\w+)['\"]\]")

_TENSOR = re.compile(
    r"^tensor '(?P<name>.+?)' (?P<what>size|stride) mismatch at index (?P<index>\d+)\. "
    r"expected (?P<before>-?\d+), actual (?P<after>-?\d+)"
)
_PROPERTY = re.compile(
    r"^tensor '(?P<name>.+?)' (?P<what>rank|dtype|requires_grad|dispatch key set|Tensor device index|device index)"
    r" mismatch\.? ?(?P<rest>.*)$",
    re.DOTALL,
)
_EXPECTED = re.compile(r"expected\s+(?P<before>.*?)(?:,\s*actual\s+(?P<after>.*))?$", re.DOTALL)
_COMPARE = re.compile(r"^(?P<what>.+?) (?P<sign>==|!=|is not|is) (?P<value>.+)$", re.DOTALL)
_GLOBAL = re.compile(r"^GLOBAL_STATE changed:\s*(?P<names>.+)$", re.DOTALL)
_OBJECT = re.compile(r"^___check_obj_id\((?P<what>.+), \d+\)(?:, type=(?P<type>.+))?$")
_TYPE = re.compile(r"^___check_type_id\((?P<what>.+), \d+\)(?:, type=(?P<type>.+))?$")
_BACKEND = re.compile(
    r"^BACKEND_MATCH failure.*?Cached backend: (?P<before>.*?)(?: \(id=\w+\))?\."
    r"(?:.*?(?:Current|New) backend: (?P<after>.*?)(?: \(id=\w+\))?\.)?(?:\s|$)",
    re.DOTALL,
)
_NO_TENSOR = re.compile(r"^expected type of '(?P<what>.+?)' to be a tensor type.*but found (?P<type>.+)$", re.DOTALL)
_KEYS = re.compile(r"DispatchKeySet\((\w+)")

_POSITION_NAME = re.compile(r"position|cumulative_length|seen_tokens|cache_len|past_len|offset|\bpos\b|\bstep\b", re.I)
_CACHE_NAME = re.compile(r"cache|past|\bkeys?\b|\bvalues?\b|\bk\b|\bv\b|attention_mask", re.I)


def _plain(text: str) -> str:
    """Source as the reader wrote it: ``x`` for ``L['x']``."""
    return _LOCAL.sub(r"\1", text).strip()


def clean(guard: str) -> str:
    """The guard alone: without compile id, code, and stack."""
    first = _ID.sub("", guard).split("\nUser stack trace:")[0]
    return _COMMENT.sub("", first).strip()


def _number(text: str | None) -> float | None:
    try:
        return float(text) if text is not None else None
    except ValueError:
        return None


def _size(guard: str, found: re.Match[str]) -> Cause:
    name, what, index = found["name"], found["what"], int(found["index"])
    before, after = int(found["before"]), int(found["after"])
    label = f"{_plain(name)}.{what}({index})"
    if what == "stride":
        remedy = STRIDE
    elif after == before + 1 and _CACHE_NAME.search(name):
        remedy = GROWING
    elif index == 0 and after < before:
        remedy = LAST_BATCH
    else:
        remedy = PAD
    return Cause(what, label, str(before), str(after), remedy, guard)


def _device(keys: str | None) -> str | None:
    """A device's name from a dispatch key set, whose first key names the backend."""
    if keys is None:
        return None
    found = _KEYS.search(keys)
    if found is None:
        return keys
    return {"PrivateUse1": "neuron", "CPU": "cpu", "CUDA": "cuda", "Meta": "meta"}.get(found[1], found[1].lower())


def _property(guard: str, found: re.Match[str]) -> Cause:
    name, what = _plain(found["name"]), found["what"]
    values = _EXPECTED.search(found["rest"].strip())
    before, after = (values["before"], values["after"]) if values else (None, None)
    if what == "requires_grad":
        before = {"requires_grad=0": "False", "requires_grad=1": "True"}.get(before or "", before)
        after = {"False": "True", "True": "False"}.get(before or "")
        return Cause("requires_grad", f"{name}.requires_grad", before, after, GRADIENT, guard)
    if what == "dispatch key set":
        one, other = _device(before), _device(after)
        if one != other:
            return Cause("device", f"{name}.device", one, other, DEVICE, guard)
        return Cause("unknown", f"{name}: {what}", before, after, "", guard)
    if "device index" in what:
        # PyTorch prints the index as a character, so its text holds no readable number.
        return Cause("device", f"{name}.device index", None, None, DEVICE, guard)
    if what == "dtype":
        return Cause("dtype", f"{name}.dtype", before, after, DTYPE, guard)
    return Cause("rank", f"{name}.dim()", before, after, RANK, guard)


def _value_of(what: str, new_guards: str) -> str | None:
    """The value that the new graph was captured with, from its own guards."""
    for line in new_guards.splitlines():
        head, sign, rest = _plain(line).partition(f": {what} == ")
        if sign and "GUARD" not in head:
            return _COMMENT.sub("", rest).strip()
    return None


def _comparison(guard: str, found: re.Match[str], new_guards: str) -> Cause:
    what, sign, before = _plain(found["what"]), found["sign"], found["value"].strip()
    if what.startswith("hasattr("):
        return Cause("unknown", guard, None, None, "", guard)
    if sign.startswith("is"):
        before, after = ("None", "not None") if sign == "is" else ("not None", "None")
        return Cause("missing", what, before, after, MISSING, guard)
    after = _value_of(what, new_guards)
    if what.startswith("len("):
        return Cause("length", what, before, after, LENGTH, guard)
    if what.endswith(".training"):
        return Cause("training", what, before, after, TRAINING, guard)
    if re.search(r"\[['\"]lr['\"]\]|\blr\b|learning_rate", what):
        remedy = LEARNING_RATE
    elif _POSITION_NAME.search(what):
        remedy = POSITION
    elif "." in what and _number(before) is not None:
        remedy = HELD
    elif _number(before) is not None:
        remedy = NUMBER
    else:
        remedy = TEXT
    return Cause("value", what, before, after, remedy, guard)


def _global(guard: str, found: re.Match[str]) -> Cause:
    names = ", ".join(found["names"].split())
    remedy = GLOBAL_STATE
    for part, said in (("autocast", AUTOCAST), ("grad_mode", GRADIENT), ("num_threads", THREADS)):
        if part in names:
            remedy = said
    return Cause("global state", names, None, None, remedy, guard)


def _backend(guard: str, found: re.Match[str]) -> Cause:
    def short(text: str | None, pattern: str) -> str | None:
        inner = re.search(pattern, text or "")
        return inner[1] if inner else text

    before, after = (short(found[side], r"compiler='?([^',)]+)'?") for side in ("before", "after"))
    if before == after:  # one backend, other options
        before, after = (short(found[side], r"kwargs=\{(.*)\}") for side in ("before", "after"))
    return Cause("backend", "backend or options", before, after, BACKEND, guard)


def _object(guard: str, found: re.Match[str]) -> Cause:
    kind = f" ({found['type']})" if found["type"] else ""
    return Cause("object", f"{_plain(found['what'])}{kind}", None, None, OBJECT, guard)


def _no_tensor(guard: str, found: re.Match[str]) -> Cause:
    if "NoneType" in found["type"]:
        return Cause("missing", _plain(found["what"]), "not None", "None", MISSING, guard)
    return Cause("type", f"type({_plain(found['what'])})", "Tensor", found["type"], SUBCLASS, guard)


def _type(guard: str, found: re.Match[str]) -> Cause:
    return Cause("type", f"type({_plain(found['what'])})", found["type"], None, SUBCLASS, guard)


_READERS: tuple[tuple[re.Pattern[str], Callable[..., Cause], bool], ...] = (
    (_TENSOR, _size, False),
    (_PROPERTY, _property, False),
    (_GLOBAL, _global, False),
    (_BACKEND, _backend, False),
    (_OBJECT, _object, False),
    (_TYPE, _type, False),
    (_NO_TENSOR, _no_tensor, False),
    (_COMPARE, _comparison, True),
)


def explain(guard: str, new_guards: str = "") -> Cause:
    """Read the guard that failed.

    Parameters
    ----------
    guard
        One reason as PyTorch gives it: ``0/0: tensor 'x' size mismatch at
        index 0. expected 4, actual 5``.
    new_guards
        The guards of the graph that was compiled instead, where the value of
        now is; empty if none was.

    Returns
    -------
    Cause
        Of kind ``unknown``, with the guard itself as its ``what``, if the text
        is not one that is known.

    Examples
    --------
    >>> print(explain("0/0: tensor 'x' size mismatch at index 1. expected 4, actual 5"))
    x.size(1): 4 -> 5
    """
    text = clean(guard)
    for pattern, read, needs_guards in _READERS:
        found = pattern.match(text)
        if found:
            return read(text, found, new_guards) if needs_guards else read(text, found)
    return Cause("unknown", text, None, None, "", text)


def remedy_for_break(reason: str) -> str:
    """What to do about a graph break, one sentence; empty where nothing is known."""
    text = reason.lower()
    if "print" in text or "logging" in text:
        return "Take the output out of the compiled function."
    if ".item()" in text or "tensor.item" in text or "_local_scalar_dense" in text:
        return "Keep the number in a tensor: .item() stops the graph and waits for the device."
    if "data-dependent" in text or "data dependent" in text:
        return "Choose with torch.where instead of a Python if on a tensor's value."
    if "disable" in text:
        return "The function is excluded from compiling (torch.compiler.disable): call it outside the compiled one."
    return ""
