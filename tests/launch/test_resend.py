"""With PS_RESEND=1, ps-lite runs until the process ends, because it cannot be stopped."""

from tests.mxnet.cluster.cluster import last_line


def test_processes_end_together_each_with_its_own_code_and_join_no_other_cluster(cluster):
    nodes = cluster(3, 1, PS_RESEND=1, PS_RESEND_TIMEOUT=1000)
    nodes.start_roles()
    leave = "exchange()\nbps.shutdown()\n"
    again = "try: bps.init()\nexcept RuntimeError as error: print(error)"
    nodes.start_script(0, f"{leave}{again}")
    nodes.start_script(1, f"{leave}sys.exit(7)")
    nodes.start_script(2, f"{leave}raise ValueError('too late to be others concern')")
    codes = {name: nodes.wait(name) for name in nodes.processes}
    assert codes == {"scheduler": 0, "server0": 0, "worker0": 0, "worker1": 7, "worker2": 1}
    assert "can join only one cluster with PS_RESEND=1" in nodes.log("worker0")
    assert last_line(nodes.log("worker2")).startswith("ValueError: too late")


def test_a_worker_that_dies_while_others_stay_is_named(cluster):
    nodes = cluster(2, 1, PS_RESEND=1)
    nodes.start_roles()
    nodes.start_script(0, "exchange()")
    nodes.start_script(1, "exchange()\nbps.shutdown()\nos.kill(os.getpid(), 9)")
    for name in nodes.processes:
        code = nodes.wait(name)
        if name == "worker1":
            assert code == -9
        else:
            assert code == 1 and "worker 1 at 127.0.0.1 is gone" in last_line(nodes.log(name))
