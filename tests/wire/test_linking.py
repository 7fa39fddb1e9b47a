"""Object files become images, or are rejected: an image can neither raise nor allocate."""

from __future__ import annotations

import os

import llvmlite.binding as llvm
import pytest

from ottla.wire.kernels.linking import NotLinkable, link

pytestmark = pytest.mark.skipif(os.uname().machine != "x86_64", reason="images are for x86-64")


def _object(text: str, *, reloc: str = "pic", codemodel: str = "small") -> bytes:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(reloc=reloc, codemodel=codemodel)
    made: bytes = machine.emit_object(llvm.parse_assembly(text))
    return made


def test_a_symbol_that_is_known_gets_a_place_for_its_address() -> None:
    image = link(
        _object(
            """
            declare i64 @PyLong_FromLongLong(i64)
            define i64 @other(i64 %a) { ret i64 %a }
            define i64 @enter(i64 %a) {
                %b = call i64 @PyLong_FromLongLong(i64 %a)
                %c = call i64 @PyLong_FromLongLong(i64 %b)
                %d = call i64 @other(i64 %c)
                ret i64 %d
            }
            """
        ),
        "enter",
    )
    assert set(image.places) == {"entry", "PyLong_FromLongLong"}
    place = image.places["PyLong_FromLongLong"]
    assert image.code[place - 6 : place + 8] == b"\xff\x25" + bytes(12)
    assert 0 < image.places["entry"] < place < len(image.code)


REFUSED = {
    "refers to abort": """
        declare void @abort()
        define i64 @enter() {
            call void @abort()
            ret i64 0
        }
        """,
    "is not just code or constants": """
        @state = internal global i64 5
        define i64 @enter() {
            %a = load i64, ptr @state
            store i64 6, ptr @state
            ret i64 %a
        }
        """,
    "a reference has type": """
        @PyExc_TypeError = external global i64
        define i64 @enter() {
            %a = load i64, ptr @PyExc_TypeError
            ret i64 %a
        }
        """,
    "no function enter": "define i64 @another() { ret i64 0 }",
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_an_image_cannot_have_is_refused(reason: str) -> None:
    with pytest.raises(NotLinkable, match=reason):
        link(_object(REFUSED[reason]), "enter")


def test_an_address_that_would_have_to_be_known_is_refused() -> None:
    text = """
        @table = internal constant [2 x i64] [i64 5, i64 6]
        define i64 @enter(i64 %a) {
            %b = getelementptr [2 x i64], ptr @table, i64 0, i64 %a
            %c = load i64, ptr %b
            ret i64 %c
        }
        """
    assert link(_object(text), "enter")
    with pytest.raises(NotLinkable, match="a reference has type"):
        link(_object(text, reloc="static", codemodel="large"), "enter")


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"\x7fELF\x02\x01" + bytes(100), b"MZ" + bytes(100)])
def test_what_is_no_object_is_refused(data: bytes) -> None:
    with pytest.raises(NotLinkable):
        link(data, "enter")
