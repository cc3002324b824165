"""The negative controls, without their trainings: those are slow."""

from __future__ import annotations

import json

import pytest

from deepvm.lab.records import check_config
from deepvm.lab.selftest import CONTROLS, config_of_control


@pytest.mark.parametrize("disturbed", [False, True])
def test_each_control_has_a_configuration_that_the_audit_accepts(disturbed: bool) -> None:
    for name, control in CONTROLS.items():
        config = json.loads(json.dumps(config_of_control(name, control, disturbed=disturbed)))
        check_config(config, name)
        assert bool(config["strikes"]) is disturbed and config["steps"] == control.steps
