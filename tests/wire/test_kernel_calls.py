"""Calling machine code: wrong arguments are rejected before they are touched; threads and forks work."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from types import BuiltinFunctionType
from typing import Any

import numpy as np
import pytest

from ottla.wire.batch import HEADER_BYTES
from ottla.wire.kernels import decoding as k
from ottla.wire.kernels import loading
from ottla.wire.kernels.calling import KERNELS, NUMBER, Kernel, reads
from ottla.wire.kernels.checksum import shift
from ottla.wire.kernels.murmur import hash_key, hash_rows
from ottla.wire.partitioning import OPEN

from .rows import Row, raw_batch, records_bytes

pytestmark = pytest.mark.skipif(not loading.is_possible(), reason="numba itself runs the kernels")

END_OF_LOG = (1 << 63) - 1
RECORDS = records_bytes([Row(b"key", b"value", (("a", b"b"),), 5), Row(None, b"other", (), 6)])
assert raw_batch(RECORDS, count=2)[HEADER_BYTES:] == RECORDS


def _binary(rows: int) -> k.BinaryOut:
    return k.BinaryOut(np.zeros(rows + 1, np.int32), np.zeros(100, np.uint8), np.full(1, 0xFF, np.uint8))


def _arguments() -> dict[str, Any]:
    """Arguments that decode two records."""
    return {
        "data": np.frombuffer(RECORDS, np.uint8),
        "segments": np.array([(0, len(RECORDS), 7, 1, 2, 0, 0, 0)], np.int64),
        "state": np.zeros(k.STATE_FIELDS, np.int64),
        "want": 63,
        "start": 0,
        "stop": END_OF_LOG,
        "offsets": np.zeros(2, np.int64),
        "timestamps": np.zeros(2, np.int64),
        "key": _binary(2),
        "value": _binary(2),
        "headers": k.HeadersOut(np.zeros(3, np.int32), np.full(1, 0xFF, np.uint8), _binary(2), _binary(2)),
        "sums": np.zeros(2, np.uint64),
    }


def _decode(arguments: dict[str, Any]) -> Any:
    return k.decode_records(*arguments.values())


def _content(arguments: dict[str, Any]) -> str:
    return repr({name: arguments[name] for name in arguments if name not in ("data", "segments")})


DECODED = _arguments()
assert _decode(DECODED) == k.DONE


def test_kernels_are_functions_of_machine_code() -> None:
    assert [kernel.name for kernel in KERNELS if "decode" in kernel.name] == ["decode_records"]
    for kernel in KERNELS:
        assert isinstance(loading.entry(kernel), BuiltinFunctionType)


def _read_only(array: Any) -> Any:
    view = array.view()
    view.flags.writeable = False
    return view


def _unaligned(array: Any) -> Any:
    memory = np.zeros(array.nbytes + 1, np.uint8)[1:]
    view = memory.view(array.dtype).reshape(array.shape)
    view[...] = array
    assert not view.flags.aligned
    return view


WRONG: list[tuple[str, Callable[[Any], Any], str]] = [
    ("data", lambda data: data.view(np.int8), "of int8, expected 1 of uint8"),
    ("data", bytes, "data is of type bytes, expected an array"),
    ("data", lambda data: None, "data is of type NoneType"),
    ("data", lambda data: data.ctypes.data, "data is of type int, expected an array"),
    ("data", lambda data: data[::2], "data is not in one piece"),
    ("data", lambda data: data.reshape(1, -1), "data has 2 dimensions of uint8, expected 1"),
    ("segments", lambda segments: segments[0], "segments has 1 dimensions of int64, expected 2"),
    ("segments", lambda segments: np.ascontiguousarray(segments[:, :7]), "segments has 7 entries, expected 8"),
    ("segments", lambda segments: segments.astype(">i8"), "segments has 2 dimensions of >i8"),
    ("state", lambda state: state[:-1], "state has 11 entries, expected 12"),
    ("state", _read_only, "state is read-only"),
    ("state", _unaligned, "state does not lie where int64 may"),
    ("offsets", lambda offsets: offsets.astype(np.int32), "offsets has 1 dimensions of int32"),
    ("timestamps", lambda timestamps: timestamps.astype(np.float64), "timestamps has 1 dimensions of float64"),
    ("key", tuple, "key is of type tuple, expected BinaryOut"),
    ("key", lambda key: key._replace(data=_read_only(key.data)), r"key\.data is read-only"),
    ("key", lambda key: key._replace(ends=key.ends[:0]), r"key\.ends has 0 entries, expected 1"),
    ("value", lambda value: value._replace(valid=b"\xff"), r"value\.valid is of type bytes"),
    ("headers", lambda headers: headers.keys, "headers is of type BinaryOut, expected HeadersOut"),
    ("headers", lambda headers: headers._replace(values=None), r"headers\.values is of type NoneType"),
    ("headers", lambda h: h._replace(keys=h.keys._replace(ends=[0, 0])), r"headers\.keys\.ends is of type list"),
    ("sums", lambda sums: sums.view(np.int64), "sums has 1 dimensions of int64, expected 1 of uint64"),
    ("sums", lambda sums: sums[:1], "sums has 1 entries, expected 2"),
    ("want", float, "'float' object cannot be interpreted as an integer"),
    ("start", lambda start: None, "'NoneType' object cannot be interpreted as an integer"),
    ("stop", lambda stop: np.zeros(2, np.int64), "only integer scalar arrays|only length-1 arrays|only 0-dimensional"),
]


@pytest.mark.parametrize(("name", "change", "reason"), WRONG)
def test_what_is_not_as_the_kernel_says_is_refused_and_not_touched(
    name: str, change: Callable[[Any], Any], reason: str
) -> None:
    arguments = _arguments()
    arguments[name] = change(arguments[name])
    before = _content(arguments)
    with pytest.raises(TypeError, match=reason):
        _decode(arguments)
    assert _content(arguments) == before


def test_a_number_that_does_not_fit_and_a_wrong_number_of_arguments_are_refused() -> None:
    with pytest.raises(OverflowError):
        _decode({**_arguments(), "stop": END_OF_LOG + 1})
    few: Any = k.decode_records
    with pytest.raises(TypeError, match="decode_records takes 12 arguments, not 1"):
        few(np.zeros(1, np.uint8))
    with pytest.raises(TypeError, match="shift takes 2 arguments, not 3"):
        shift(1, 2, 3)  # type: ignore[call-arg]
    for key in ("text", bytearray(b"key"), 5, None):
        with pytest.raises(TypeError, match="expected bytes"):
            hash_key(key)


class _Bytes(bytes):
    pass


class _Sub(np.ndarray[Any, Any]):
    pass


def _other_dtype(array: Any) -> Any:
    """Of the same type by another name: what C calls long long."""
    return array.view(np.dtype("q"))


SAME: list[tuple[str, Callable[[Any], Any]]] = [
    ("data", lambda data: data.copy()),  # writable
    ("data", lambda data: data.view(_Sub)),
    ("segments", _unaligned),
    ("segments", _other_dtype),
    ("state", _other_dtype),
    ("offsets", lambda offsets: offsets.view(_Sub)),
    ("key", lambda key: key._replace(data=key.data.view(_Sub))),
    ("want", lambda want: np.int64(want)),
    ("stop", lambda stop: np.uint64(stop)),
]


@pytest.mark.parametrize(("name", "change"), SAME)
def test_the_same_content_in_another_form_is_taken(name: str, change: Callable[[Any], Any]) -> None:
    arguments = _arguments()
    changed = {**arguments, name: change(arguments[name])}
    assert _decode(changed) == k.DONE
    assert _content({**arguments, "want": 63, "stop": END_OF_LOG}) == _content(DECODED)
    assert hash_key(_Bytes(b"key")) == hash_key(b"key")


def test_arguments_are_neither_kept_nor_lost() -> None:
    arguments = _arguments()
    # Small numbers are shared with the rest of the process, where other threads come and go.
    own = [argument for argument in arguments.values() if not isinstance(argument, int)]
    before = [sys.getrefcount(argument) for argument in own]
    nothing = sys.getrefcount(None)
    for _ in range(1000):
        arguments["state"][:] = 0
        assert _decode(arguments) == k.DONE
        with pytest.raises(TypeError):
            _decode({**arguments, "data": None})
        with pytest.raises(TypeError):
            _decode({**arguments, "want": 1.5})
    assert [sys.getrefcount(argument) for argument in own] == before
    assert abs(sys.getrefcount(None) - nothing) < 500


def test_an_argument_whose_number_is_made_by_python_may_use_kernels_itself() -> None:
    class Number:
        def __index__(self) -> int:
            return int(shift(1, 5))

    assert shift(Number(), 0) == shift(1, 5)


def test_threads_call_at_once_and_are_first_at_once() -> None:
    gate = threading.Barrier(4)
    wrong: list[Any] = []
    assert isinstance(k.decode_records, Kernel)
    fresh = Kernel(k.decode_records.function, k.decode_records.kinds)

    def work() -> None:
        gate.wait()
        for _ in range(300):
            arguments = _arguments()
            if fresh(*arguments.values()) != k.DONE or _content(arguments) != _content(DECODED):
                wrong.append(arguments)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_kernel_lets_other_threads_run() -> None:
    """Other threads get the GIL while a kernel works."""
    script = """
import sys, threading
import numpy as np
from ottla.wire.kernels.murmur import hash_rows
data = np.zeros(1 << 22, np.uint8)
arguments = np.array([0, len(data)], np.int64), data, data[:0], 7
gate, seen = threading.Lock(), []
gate.acquire()
def look():
    gate.acquire()
    seen.append("another thread")
threading.Thread(target=look).start()
out = np.full(1, -1, np.int32)
hash_rows(*arguments, out)
sys.setswitchinterval(1000)
gate.release()
while not seen:
    out[0] = -1
    hash_rows(*arguments, out)
print(*seen)
"""
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert run.stdout == "another thread\n", run.stderr


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_uses_what_its_parent_has_loaded_and_loads_more() -> None:
    assert shift(1, 5)
    assert isinstance(hash_rows, Kernel)
    fresh = Kernel(hash_rows.function, hash_rows.kinds)
    child = os.fork()
    if child == 0:
        out = np.full(1, OPEN, np.int32)
        key = np.frombuffer(b"key", np.uint8)
        still = fresh(np.array([0, 3], np.int64), key, key[:0], 1000, out)
        good = still == 0 and out[0] == (hash_key(b"key") & 0x7FFFFFFF) % 1000 and shift(1, 5) == 940666796
        os._exit(0 if good else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_process_may_end_while_a_thread_is_in_a_kernel() -> None:
    script = """
import threading
import numpy as np
from ottla.wire.kernels.murmur import hash_rows
data = np.zeros(1 << 22, np.uint8)
ends = np.array([0, len(data)], np.int64)
began = threading.Event()
def work():
    while True:
        hash_rows(ends, data, data[:0], 7, np.full(1, -1, np.int32))
        began.set()
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
began.wait()
print("end")
"""
    for _ in range(5):
        run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
        assert (run.returncode, run.stdout, run.stderr) == (0, "end\n", "")


def test_parameters_are_declared_as_they_are() -> None:
    with pytest.raises(TypeError, match="parameters of _add do not match its declaration"):
        Kernel(_add, {"a": NUMBER, "c": reads("uint8")})


def _add(a: Any, b: Any) -> Any:
    return a + b
