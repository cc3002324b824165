"""Text in Terraform's language, which takes some of it for templates."""

from __future__ import annotations


def literal(text: str) -> str:
    """Text as a Terraform expression: the start of a template is escaped by doubling."""
    return text.replace("${", "$${").replace("%{", "%%{")


def expression(text: str) -> str:
    """What Terraform is to work out."""
    return "${" + text + "}"
