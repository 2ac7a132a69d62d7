"""Signatures: the vectors of RFC 8032, and nothing else is one."""

from __future__ import annotations

import pytest

from postroom.mail import signing

#: Secret seed, public key, text, signature (RFC 8032, section 7.1).
VECTORS = [
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]


@pytest.mark.parametrize(("seed", "key", "text", "signature"), VECTORS)
def test_keys_and_signatures_are_those_of_the_standard(seed: str, key: str, text: str, signature: str) -> None:
    secret, public, words, signed = map(bytes.fromhex, (seed, key, text, signature))

    assert signing.public_key(secret) == public
    assert signing.sign(secret, words) == signed
    assert signing.verifies(public, words, signed)


def test_nothing_else_is_a_signature() -> None:
    seed, key, text, signature = map(bytes.fromhex, VECTORS[2])
    other = signing.public_key(bytes(32))
    raised = (int.from_bytes(signature[32:], "little") + 2**252 + 27742317777372353535851937790883648493).to_bytes(
        32, "little"
    )

    changed = [signature[:i] + bytes([signature[i] ^ 1]) + signature[i + 1 :] for i in (0, 31, 32, 63)]
    for wrong in [*changed, b"", signature[:-1], signature + b"\0", bytes(64), b"\xff" * 64, signature[:32] + raised]:
        assert not signing.verifies(key, text, wrong)
    assert not signing.verifies(key, text + b"x", signature)
    assert not signing.verifies(other, text, signature)
    for no_key in (b"", b"\xff" * 32, b"\x02" + bytes(31)):
        assert not signing.verifies(no_key, text, signature)
    assert signing.verifies(key, text, signing.sign(seed, text))
