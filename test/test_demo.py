"""make demo: what it shows is so, and it leaves nothing behind."""

import importlib.util
import io
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.clickhouse import ClickHouse
from harness.clickhouse_equal import assert_current

SCRIPT = Path(__file__).resolve().parent.parent / "demo/run.py"
spec = importlib.util.spec_from_file_location("demo_script", SCRIPT)
demo_script = importlib.util.module_from_spec(spec)
spec.loader.exec_module(demo_script)

CUSTOMERS = 200


def test_the_steps_keep_both_sides_equal(fresh_server):
    """Every value of every table, not only the figures that are shown."""
    server = fresh_server()
    server.create_database("shop", extension=False)
    told = io.StringIO()
    with ClickHouse(proxy=False, users={"default": {}}) as ch:
        demo = demo_script.Demo(server, ch, CUSTOMERS, told)
        demo.fill()
        demo.replicate()
        tables = [f"public.{table}" for table in demo_script.TABLES]
        assert_current(server, "shop", ch, "shop", tables)
        before = server.sql(demo_script.figures_sql(demo_script.source), db="shop")
        demo.change()
        assert_current(server, "shop", ch, "shop", tables)
        after = server.sql(demo_script.figures_sql(demo_script.source), db="shop")
        assert all(a != b for a, b in zip(before, after)), "every table has changed"
        demo.look()
        demo.compare()
        assert demo.looks > 100
        shown = server.tables("shop", "shop")
        assert sorted(shown) == sorted(tables) and all(t["state"] == "ready" for t in shown.values())
        assert shown["public.carts"]["truncates"] == 1
        assert all(demo_script.target(t["table_name"]) == f"shop.{t['destination_table']}_current" for t in shown.values())
        # a difference does not pass
        ch.execute("ALTER TABLE shop.public_payments DELETE WHERE reference IS NULL SETTINGS mutations_sync = 1")
        with pytest.raises(demo_script.Unequal):
            demo.compare()
        demo.end()
    assert server.processes() and not server.backends("etl apply")
    assert "password" not in server.log()


def test_the_script_ends_well_and_leaves_nothing():
    with tempfile.TemporaryDirectory(prefix="shop.", dir=os.environ.get("ETL_TMP") or "/tmp") as folder:
        os.chmod(folder, 0o755)
        done = subprocess.run([sys.executable, str(SCRIPT), "--customers", str(CUSTOMERS)], cwd=folder,
                              env={**os.environ, "ETL_TMP": folder}, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
        assert "all equal" in done.stdout.splitlines()[-1]
        assert os.listdir(folder) == []
        running = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
        assert folder not in running
