"""Round times on an axis of time."""


def ticks(seconds: float, most: int = 6) -> list[float]:
    """Return round times from 0 to `seconds`: at most `most` steps of 1, 2 or 5 times a power of ten."""
    if not seconds > 0:
        return [0.0]
    steps = (float(f"{digit}e{power}") for power in range(-15, 16) for digit in (1, 2, 5))
    step = next((step for step in steps if step * most >= seconds), seconds)
    return [step * number for number in range(int(seconds / step * (1 + 1e-12)) + 1)]
