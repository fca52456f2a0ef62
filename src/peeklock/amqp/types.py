"""AMQP 1.0 types without a Python counterpart, each a subclass of the plain value it behaves as.

Source: OASIS AMQP 1.0, part 1 (Types) sections 1.6.1-1.6.24.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, Final

TAG_BYTES_MAX: Final = 32
"""Bytes of a delivery-tag that we send. Source: AMQP 2.8.7."""

PEER_TAG_BYTES_MAX: Final = 255
"""Bytes of a delivery-tag that we accept, those of a vbin8: the retired Java client sends 36. Source: wire
contract C18."""


class Role(enum.Enum):
    """The end of a link that a peer is at; the value is the one on the wire (AMQP 2.8.1)."""

    SENDER = False
    RECEIVER = True


SENDER: Final = Role.SENDER
RECEIVER: Final = Role.RECEIVER
"""For hot paths: a member of an Enum takes ten times as long to look up as a global."""


class Symbol(str):
    """A symbolic value of a constrained domain: ASCII text (AMQP 1.6.21)."""

    __slots__ = ()


class Char(str):
    """One Unicode character (AMQP 1.6.16)."""

    __slots__ = ()


class UByte(int):
    """Unsigned 8 bit integer."""

    __slots__ = ()


class UShort(int):
    """Unsigned 16 bit integer."""

    __slots__ = ()


class UInt(int):
    """Unsigned 32 bit integer."""

    __slots__ = ()


class ULong(int):
    """Unsigned 64 bit integer."""

    __slots__ = ()


class Byte(int):
    """Signed 8 bit integer."""

    __slots__ = ()


class Short(int):
    """Signed 16 bit integer."""

    __slots__ = ()


class Int(int):
    """Signed 32 bit integer."""

    __slots__ = ()


class Long(int):
    """Signed 64 bit integer; always sent in its 8-byte form, which some clients read raw."""

    __slots__ = ()


class Timestamp(int):
    """Milliseconds since 1970-01-01 UTC, signed 64 bit."""

    __slots__ = ()


class Float(float):
    """IEEE 754 binary32; a plain `float` is a double."""

    __slots__ = ()


class Decimal32(bytes):
    """The 4 bytes of an IEEE 754 decimal32, kept as they are."""

    __slots__ = ()


class Decimal64(bytes):
    """The 8 bytes of an IEEE 754 decimal64, kept as they are."""

    __slots__ = ()


class Decimal128(bytes):
    """The 16 bytes of an IEEE 754 decimal128, kept as they are."""

    __slots__ = ()


class Encoded(bytes):
    """An encoded value (constructor and data); the encoder inserts it unchanged."""

    __slots__ = ()


class Array(list[Any]):
    """A sequence of values of one type, sent with one constructor (AMQP 1.6.24).

    `element_type` is a wrapper class or one of `bool str bytes float list dict uuid.UUID Array NoneType`.
    `descriptors` are those of the shared constructor, outermost first; elements are the values inside.
    """

    __slots__ = ("descriptors", "element_type")

    def __init__(
        self, element_type: type, values: Iterable[Any] = (), descriptors: tuple[Any, ...] = ()
    ) -> None:
        super().__init__(values)
        self.element_type = element_type
        self.descriptors = descriptors

    @classmethod
    def of(cls, element_type: type, values: Iterable[Any] = ()) -> Array:
        """Return an array of `element_type` with `values`."""
        return cls(element_type, values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Array):
            return (
                self.element_type is other.element_type
                and self.descriptors == other.descriptors
                and list.__eq__(self, other)
            )
        return list.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = None  # a list is mutable, so it hashes to nothing

    def __repr__(self) -> str:
        described = f", descriptors={self.descriptors!r}" if self.descriptors else ""
        return f"Array({self.element_type.__name__}, {list.__repr__(self)}{described})"


class Described:
    """A value with a descriptor, which is a symbol or an unsigned long (AMQP 1.1.2)."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: Any, value: Any) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Described):
            return NotImplemented
        return bool(self.descriptor == other.descriptor and self.value == other.value)

    def __hash__(self) -> int:
        return hash((self.descriptor, self.value))

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"
