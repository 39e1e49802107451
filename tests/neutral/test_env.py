"""Environment variables: reading them, rejecting wrong ones, and setting those of MXNet."""

import os

import pytest

from gluon_gc import env
from gluon_gc.env import variables

WORKER = {
    "DMLC_ROLE": "worker",
    "DMLC_PS_ROOT_URI": "10.0.0.1",
    "DMLC_PS_ROOT_PORT": "9000",
    "DMLC_NUM_WORKER": "2",
    "DMLC_NUM_SERVER": "1",
    "DMLC_WORKER_ID": "1",
}
VARIABLES = (*variables.TABLE, *variables.OF_LAUNCHERS)


@pytest.fixture
def environ(monkeypatch):
    """Return an environment without the tables' variables; changes to it are undone."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    for variable in VARIABLES:
        for name in (variable.name, variable.older):
            os.environ.pop(name, None)
    return os.environ


def test_the_table_names_each_variable_once_and_states_rules_that_exist():
    names = [name for variable in VARIABLES for name in (variable.name, variable.older) if name]
    assert len(names) == len(set(names))
    assert {variable.kind for variable in VARIABLES} <= set(variables.KINDS)


@pytest.mark.parametrize("variable", VARIABLES, ids=lambda variable: variable.name)
def test_an_unset_variable_has_its_default_or_is_missed_by_name(environ, variable):
    if variable.default is variables.REQUIRED:
        with pytest.raises(env.ConfigurationError, match=f"{variable.name} is not set: "):
            env.get(variable.name)
    elif callable(variable.default):
        assert env.get(variable.name) == variable.default()
    else:
        assert env.get(variable.name) == variable.default


@pytest.mark.parametrize(
    "name, text, value",
    [
        ("BYTEPS_PARTITION_BYTES", " 1024 ", 1024),
        ("BYTEPS_FORCE_DISTRIBUTED", "1", True),
        ("BYTEPS_THREADPOOL_SIZE", "0", 0),
        ("BYTEPS_LOG_LEVEL", "info", "INFO"),
        ("BYTEPS_MIN_COMPRESS_BYTES", "", 0),
    ],
)
def test_a_value_is_read_as_its_kind_says(environ, name, text, value):
    environ[name] = text
    assert env.get(name) == value


@pytest.mark.parametrize(
    "name, text, rule",
    [
        ("BYTEPS_PARTITION_BYTES", "x", "a whole number from 1 to 2147483647"),
        ("BYTEPS_PARTITION_BYTES", "0", "a whole number from 1 to 2147483647"),
        ("BYTEPS_PARTITION_BYTES", "2147483648", "a whole number from 1 to 2147483647"),
        ("BYTEPS_MIN_COMPRESS_BYTES", "-1", "a whole number >= 0"),
        ("BYTEPS_NUMA_ON", "2", "0 or 1"),
        ("DMLC_PS_ROOT_PORT", "65536", "a port from 1 to 65535"),
        ("DMLC_ROLE", "boss", "one of worker, server, scheduler"),
        ("BYTEPS_LOG_LEVEL", "LOUD", "one of TRACE, DEBUG, INFO, WARNING, ERROR, FATAL"),
    ],
)
def test_a_wrong_value_is_refused_with_name_rule_and_value(environ, name, text, rule):
    environ[name] = text
    with pytest.raises(ValueError) as refusal:
        env.get(name)
    assert str(refusal.value) == f"{name} must be {rule}, got '{text}'"


def test_an_older_spelling_is_read_unless_the_newer_one_is_set(environ):
    environ["BYTEPS_MIN_COMPRESS_BYTE"] = "10"
    assert env.get("BYTEPS_MIN_COMPRESS_BYTES") == 10
    environ["BYTEPS_MIN_COMPRESS_BYTES"] = "20"
    assert env.get("BYTEPS_MIN_COMPRESS_BYTES") == 20


def test_an_error_names_the_spelling_that_was_used(environ):
    environ["BYTEPS_MIN_COMPRESS_BYTE"] = "x"
    with pytest.raises(env.ConfigurationError, match="^BYTEPS_MIN_COMPRESS_BYTE must be"):
        env.get("BYTEPS_MIN_COMPRESS_BYTES")


def test_a_variable_outside_the_table_is_not_read(environ):
    with pytest.raises(KeyError):
        env.get("HOME")


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, True),
        ({"DMLC_ROLE": "server"}, False),
        ({"DMLC_ROLE": ""}, False),
        ({"DMLC_NUM_WORKER": "1"}, False),
        ({"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": ""}, False),
        ({"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0"}, False),
        ({"DMLC_NUM_WORKER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1"}, True),
        ({"DMLC_NUM_WORKER": "1", "DMLC_NUM_SERVER": "0", "BYTEPS_FORCE_DISTRIBUTED": "1"}, True),
        ({"DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": "2"}, False),
    ],
)
def test_only_a_worker_with_others_or_that_is_forced_to_is_distributed(environ, changes, expected):
    environ.update(WORKER, **changes)
    assert env.distributed() is expected


@pytest.mark.parametrize(
    "changes, expected",
    [
        ({}, True),
        ({"BYTEPS_LOCAL_SIZE": "1"}, False),
        ({"DMLC_NUM_WORKER": "2"}, False),
        ({"BYTEPS_FORCE_DISTRIBUTED": "1"}, False),
        ({"DMLC_ROLE": "server"}, False),
        ({"DMLC_ROLE": ""}, False),
    ],
)
def test_only_several_workers_of_a_job_of_one_machine_share_it(environ, changes, expected):
    alone = {"DMLC_ROLE": "worker", "DMLC_NUM_WORKER": "1", "BYTEPS_LOCAL_SIZE": "2"}
    environ.update({**alone, **changes})
    assert env.shares_machine() is expected


def test_ranks_follow_machine_and_place_on_it(environ):
    environ.update(WORKER, BYTEPS_LOCAL_RANK="2", BYTEPS_LOCAL_SIZE="4")
    cluster = env.cluster()
    assert (cluster.rank, cluster.total_workers) == (6, 8)


def test_a_server_has_no_rank_and_needs_no_worker_id(environ):
    environ.update(WORKER, DMLC_ROLE="server", DMLC_WORKER_ID="")
    assert env.cluster().rank is None


@pytest.mark.parametrize("name", WORKER)
def test_a_cluster_with_a_variable_missing_is_refused_by_its_name(environ, name):
    environ.update(WORKER)
    del environ[name]
    with pytest.raises(env.ConfigurationError, match=f"^{name} is not set: [^\n]+$"):
        env.cluster()


@pytest.mark.parametrize(
    "name, text, message",
    [
        ("DMLC_WORKER_ID", "2", r"DMLC_WORKER_ID must be < DMLC_NUM_WORKER \(2\), got 2"),
        ("BYTEPS_LOCAL_RANK", "1", r"BYTEPS_LOCAL_RANK must be < BYTEPS_LOCAL_SIZE \(1\), got 1"),
        ("DMLC_NUM_SERVER", "0", "DMLC_NUM_SERVER must be a positive whole number, got 0"),
        ("DMLC_NUM_WORKER", "two", "DMLC_NUM_WORKER must be a positive whole number, got 'two'"),
        ("DMLC_PS_VAN_TYPE", "p3", "DMLC_PS_VAN_TYPE must be zmq, got 'p3'"),
        ("DMLC_PS_VAN_TYPE", "ibverbs", "DMLC_PS_VAN_TYPE must be zmq, got 'ibverbs'"),
    ],
)
def test_a_contradictory_cluster_is_refused(environ, name, text, message):
    environ.update(WORKER, **{name: text})
    with pytest.raises(env.ConfigurationError, match=f"^{message}$"):
        env.cluster()


def test_ps_lite_is_told_of_every_worker_process_and_the_environment_stays(environ):
    environ.update(WORKER, BYTEPS_LOCAL_SIZE="4")
    before = dict(environ)
    cluster = env.cluster()
    with env.exported_for_ps_lite(cluster):
        assert environ["DMLC_NUM_WORKER"] == "8"
        assert environ["DMLC_PS_VAN_TYPE"] == "zmq", "ps-lite refuses an empty one"
        assert environ["DMLC_PS_ROOT_PORT"] == "9000"
    assert environ == before and env.cluster() == cluster


def test_a_server_without_its_role_in_the_environment_exports_the_role_it_was_given(environ):
    environ.update(WORKER, DMLC_ROLE="")
    env.export_for_ps_lite(env.cluster("server"))
    assert environ["DMLC_ROLE"] == "server"


def test_what_nodes_tell_each_other_is_what_must_be_alike(environ):
    environ.update(WORKER, PS_HEARTBEAT_TIMEOUT="7")
    assert env.shared_settings() == {
        "DMLC_NUM_WORKER": 2,
        "DMLC_NUM_SERVER": 1,
        "GLUON_GC_STALL_SECONDS": 60,
        "GLUON_GC_TIMEOUT": 0,
        "PS_HEARTBEAT_INTERVAL": 1,
        "PS_HEARTBEAT_TIMEOUT": 7,
        "PS_RESEND": False,
    }


@pytest.mark.parametrize(
    "interval, timeout, alive", [("1", "10", 10), ("3", "10", 3), ("20", "10", 1), ("0", "1", 99)]
)
def test_a_node_is_dead_after_the_time_out_and_more_than_one_interval(
    environ, interval, timeout, alive
):
    environ.update(PS_HEARTBEAT_INTERVAL=interval, PS_HEARTBEAT_TIMEOUT=timeout)
    assert not env.is_silent(alive)
    assert env.is_silent(alive + 1) == (interval != "0")


@pytest.mark.parametrize(
    "warn_after, give_up_after, set_for_horovod",
    [
        ("60", "0", {"STALL_CHECK_TIME_SECONDS": "60", "STALL_SHUTDOWN_TIME_SECONDS": "0"}),
        ("60", "300", {"STALL_CHECK_TIME_SECONDS": "60", "STALL_SHUTDOWN_TIME_SECONDS": "300"}),
        ("60", "20", {"STALL_CHECK_TIME_SECONDS": "20", "STALL_SHUTDOWN_TIME_SECONDS": "20"}),
        ("0", "300", {"STALL_CHECK_TIME_SECONDS": "300", "STALL_SHUTDOWN_TIME_SECONDS": "300"}),
        ("0", "0", {"STALL_CHECK_DISABLE": "1"}),
    ],
)
def test_horovod_looks_for_stalls_as_we_do(environ, warn_after, give_up_after, set_for_horovod):
    environ.update(GLUON_GC_STALL_SECONDS=warn_after, GLUON_GC_TIMEOUT=give_up_after)
    env.prepare_horovod()
    found = {name[8:]: value for name, value in environ.items() if name.startswith("HOROVOD_STALL")}
    assert found == set_for_horovod


@pytest.mark.parametrize(
    "sizes, several",
    [
        ({}, True),
        ({"": 4, "LOCAL_": 4, "CROSS_": 1}, False),
        ({"": 4, "LOCAL_": 1, "CROSS_": 4}, False),
        ({"": 4, "LOCAL_": 2, "CROSS_": 2}, True),
        ({"": 3, "LOCAL_": 1, "CROSS_": 2}, True),
    ],
)
def test_horovod_is_asked_for_process_sets_where_some_share_a_node(environ, sizes, several):
    environ.update({f"HOROVOD_{prefix}SIZE": str(size) for prefix, size in sizes.items()})
    assert env.several_on_some_nodes() == several
    environ["BYTEPS_LOCAL_SIZE"] = "2"
    assert env.several_on_some_nodes()


def test_horovod_looks_for_stalls_as_the_user_says(environ):
    environ.update(HOROVOD_STALL_CHECK_TIME_SECONDS="7")
    env.prepare_horovod()
    assert environ["HOROVOD_STALL_CHECK_TIME_SECONDS"] == "7"


def test_the_steps_of_a_trace_include_the_last(environ):
    environ.update(BYTEPS_TRACE_START_STEP="3", BYTEPS_TRACE_END_STEP="5")
    assert list(env.traced_steps()) == [3, 4, 5]


def test_a_trace_that_ends_before_it_begins_is_refused(environ):
    environ["BYTEPS_TRACE_END_STEP"] = "9"
    message = r"^BYTEPS_TRACE_END_STEP must be >= BYTEPS_TRACE_START_STEP \(10\), got 9$"
    with pytest.raises(env.ConfigurationError, match=message):
        env.traced_steps()


@pytest.mark.parametrize("threads, copies", [("3", "8"), ("12", "12"), ("0", "8")])
def test_the_engine_gets_the_threads_of_the_pool_and_room_for_exchanges(environ, threads, copies):
    environ["BYTEPS_THREADPOOL_SIZE"] = threads
    environ["MXNET_CPU_TEMP_COPY"] = "16"
    env.prepare_engine()
    assert "MXNET_CPU_PARALLEL_RAND_COPY" not in environ
    env.prepare_exchanges()
    assert environ.get("MXNET_CPU_WORKER_NTHREADS", "0") == threads
    assert environ["MXNET_CPU_PARALLEL_RAND_COPY"] == copies
    assert environ["MXNET_CPU_TEMP_COPY"] == "16", "what the user set stays"
    assert environ["PS_HEARTBEAT_TIMEOUT"] == "30"
    assert environ["PS_RESEND_TIMEOUT"] == "6000"


def test_a_server_uses_the_openmp_threads_it_was_given(environ):
    environ["OMP_NUM_THREADS"] = "3"
    assert env.server_threads() == 3


def test_a_child_gets_the_environment_with_the_changes(environ):
    environ.update(WORKER)
    child = env.for_child({"DMLC_ROLE": None, "DMLC_WORKER_ID": "0"})
    assert "DMLC_ROLE" not in child and child["DMLC_WORKER_ID"] == "0"
    assert environ["DMLC_ROLE"] == "worker"


@pytest.mark.parametrize(
    "name, near",
    [
        ("BYTEPS_PARTITON_BYTES", "BYTEPS_PARTITION_BYTES"),
        ("BYTEPS_THREADPOOL", "BYTEPS_THREADPOOL_SIZE"),
        ("BYTEPS_HEARTBEAT_TIMEOUT", "PS_HEARTBEAT_TIMEOUT"),
        ("GLUON_GC_PARTITION_BYTES", "BYTEPS_PARTITION_BYTES"),
        ("GLUON_GC_XYZ", None),
    ],
)
def test_a_variable_that_nobody_reads_is_found_with_the_nearest_that_is_read(environ, name, near):
    environ[name] = "1"
    assert env.misspelt() == {name: near}


@pytest.mark.parametrize(
    "name",
    [*variables.IGNORED, "BYTEPS_MIN_COMPRESS_BYTE", "BYTEPS_NUMA_ON", "BYTEPS_XYZ", "NUMA_ONN"],
)
def test_a_variable_that_is_bytepss_or_of_others_is_not_called_misspelt(environ, name):
    environ[name] = "1"
    assert env.misspelt() == {}


def test_no_variable_is_both_read_and_ignored():
    assert not {variable.name for variable in variables.TABLE}.intersection(variables.IGNORED)
