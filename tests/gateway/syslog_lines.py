"""Syslog messages as they are sent, and as hostile ones would be: the same from the same seed."""

from __future__ import annotations

import random

SOUND = (
    b"<34>1 2003-10-11T22:14:15.003Z mymachine.example.com su - ID47 - \xef\xbb\xbf'su root' failed on /dev/pts/8",
    b"<165>1 2003-08-24T05:14:15.000003-07:00 192.0.2.1 myproc 8710 - - %% It's time to make the do-nuts.",
    b'<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [exampleSDID@32473 iut="3" eventSource="App\\]\\"x"] BOM',
    b'<165>1 2003-10-11T22:14:15.003Z host evntslog - ID47 [a@1 iut="3"][b@2 class="high"]',
    b"<0>1 - - - - - -",
    b"<191>1 2026-02-28T23:59:59.999999Z - - - - - -\n",
    b"<34>Oct 11 22:14:15 mymachine su: 'su root' failed for lonvick on /dev/pts/8",
    b"<13>Feb  5 17:32:18 10.0.0.99 Use the BFG!",
    b"<13>Oct 11 22:14:15 su[12]: without a host",
    b"<165>Aug 24 05:34:00 CST 1987 mymachine myproc[10]: %% It's time",
    b"<30>Nov 18 10:11:12 web-1 systemd-logind[812]: New session 4.",
    b"<22>Nov 18 10:11:12 mx postfix/smtpd[9]: connect from unknown",
    b"<14>myapp: hello\x00",
    b"<14>no tag at all",
    b"<189>29: *Mar  1 18:48:50.483 UTC: %SYS-5-CONFIG_I: Configured from console by vty2",
    b"<187>.Jan  1 2024 00:00:00: %LINK-3-UPDOWN: Interface up",
    b"<13>2024-10-11T22:14:15.003 host app[3]: local time",
    b"<13>2024-10-11T22:14:15+02:00 host app: with an offset",
    b"Oct 11 22:14:15 mymachine su: no priority",
    b"plain text",
    b"<13>Feb 29 00:00:00 h a: leap",
    b"<999>x",
    b"<13>2 2003-10-11T22:14:15Z h a p m - other version",
    b"<13>1 2003-10-11T22:14:60Z h a p m - leap second",
    b"<13>1 2003-10-11T22:14:15Z h a p m [broken message",
    b"<13>1 2003-10-11T22:14:15Z h a",
    b"",
    b"<",
    b"<>",
    b"<13>",
    b"1",
)
_PARTS = (
    *(b" ", b"-", b":", b"[", b"]", b'"', b"\\", b"=", b"<13>", b"1 ", b"\0", b"\n", b"\r", b"\xff", b"\xef\xbb\xbf"),
    *(
        b"2003-10-11T22:14:15.003Z",
        b"Oct 11 22:14:15",
        b"Feb 29",
        b"12345678901",
        b"a" * 130,
        b'[x@1 a="b"]',
        b" UTC",
        b".",
    ),
)


def line(chance: random.Random) -> bytes:
    """One message: sound, or changed here and there, or made of pieces."""
    if chance.random() < 0.1:
        return b"".join(chance.choice(_PARTS) for _ in range(chance.randrange(12)))
    message = bytearray(chance.choice(SOUND))
    for _ in range(chance.choice((0, 1, 1, 2, 4))):
        at = chance.randrange(len(message) + 1)
        until = at + chance.choice((0, 0, 1, 1, 3, 20))
        message[at:until] = chance.choice((chance.choice(_PARTS), bytes((chance.randrange(256),)), b""))
    return bytes(message)
