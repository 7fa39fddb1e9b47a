"""What a program says when it is there. It imports as little as possible, since its start is measured."""

import sys


def there(found: int = 0, **more: float) -> None:
    """One line for whoever has started this program."""
    with open("/proc/self/status") as status:
        (peak,) = (int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
    extra = "".join(f', "{name}": {value}' for name, value in more.items())
    sys.stdout.write(f'{{"found": {found}, "memory_bytes": {peak}{extra}}}\n')
    sys.stdout.flush()
