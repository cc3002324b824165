"""Exports of a plan for other tools, see :mod:`deepvm.reports.exports.registry`."""
