"""The servers that run on Java: the REST catalogs, Spark standalone and Spark Connect."""

from __future__ import annotations

import json
import os
import socket
import urllib.request
from pathlib import Path
from typing import Any

import locate
from plan import LOOPBACK, NESSIE_WAREHOUSE, REGION, WAREHOUSE, Plan
from servers import Server, data_dir, http_ok

# Spark 4.1 runs on Java 17 and 21, and warns or fails on newer ones.
_SPARK_JAVA = (17, 21)
# A fast start matters more here than peak speed: only the first compiler, the small collector.
_LIGHT = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto"]


def rest(plan: Plan) -> Server:
    """Return Iceberg's reference REST catalog on PostgreSQL and S3."""
    libraries = locate.cache_dir() / "rest-catalog"
    locate.jars("rest-catalog")
    database = f"jdbc:postgresql://{LOOPBACK}:{plan.ports['postgres']}/cat"
    java = str(locate.java(17))
    return Server(
        name="rest",
        url=plan.url("rest"),
        command=[
            *(java, *_LIGHT, "-Xmx512m", "-Dorg.slf4j.simpleLogger.showDateTime=true"),
            *("-cp", f"{libraries / 'classes'}:{libraries}/*"),
            "org.apache.iceberg.rest.LoopbackCatalogServer",
        ],
        env={
            "REST_PORT": str(plan.ports["rest"]),
            "CATALOG_CATALOG__IMPL": "org.apache.iceberg.jdbc.JdbcCatalog",
            "CATALOG_URI": database,
            "CATALOG_JDBC_USER": "postgres",
            "CATALOG_JDBC_PASSWORD": plan.postgres_password,
            "CATALOG_WAREHOUSE": WAREHOUSE,
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": plan.url("s3"),
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_S3_ACCESS__KEY__ID": plan.access_key,
            "CATALOG_S3_SECRET__ACCESS__KEY": plan.secret_key,
            "CATALOG_CLIENT_REGION": REGION,
        },
        ready=lambda: http_ok(plan.url("rest") + "/v1/config"),
        after=("postgres",),
    )


def nessie(plan: Plan) -> Server:
    """Return Nessie with its Iceberg REST interface, all versions in memory."""
    settings_file = data_dir("nessie") / "application.properties"
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        "quarkus.http.host": LOOPBACK,
        "quarkus.http.port": str(plan.ports["nessie"]),
        "quarkus.management.host": LOOPBACK,
        "quarkus.management.port": str(plan.ports["nessie_management"]),
        "quarkus.otel.sdk.disabled": "true",
        "nessie.version.store.type": "IN_MEMORY",
        "nessie.catalog.default-warehouse": "warehouse",
        "nessie.catalog.warehouses.warehouse.location": NESSIE_WAREHOUSE,
        f"{s3}.endpoint": plan.url("s3"),
        f"{s3}.region": REGION,
        f"{s3}.path-style-access": "true",
        f"{s3}.request-signing-enabled": "false",
        f"{s3}.access-key": "urn:nessie-secret:quarkus:holdfast.s3",
        "holdfast.s3.name": plan.access_key,
        "holdfast.s3.secret": plan.secret_key,
    }
    java = str(locate.java(21))
    jar = str(locate.jars("nessie")[0])
    return Server(
        name="nessie",
        url=plan.url("nessie") + "/iceberg/",
        command=[
            *(java, *_LIGHT, "-Xmx768m", f"-Dquarkus.config.locations={settings_file}"),
            *("-jar", jar),
        ],
        prepare=lambda: _write_settings(settings_file, settings),
        ready=lambda: http_ok(plan.url("nessie") + "/iceberg/v1/config"),
    )


def _write_settings(path: Path, settings: dict[str, str]) -> None:
    """Write a properties file for this user alone: it holds credentials."""
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), "utf-8")


def _spark_env() -> dict[str, str]:
    """Return the environment of every Spark process."""
    python = locate.venv_python()
    light = " ".join(_LIGHT)
    return {
        "SPARK_HOME": str(locate.spark_home(python)),
        "SPARK_CONF_DIR": str(data_dir("spark-conf")),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_PUBLIC_DNS": LOOPBACK,
        "SPARK_LOCAL_DIRS": str(data_dir("spark-local")),
        "SPARK_DAEMON_MEMORY": "384m",
        "SPARK_DAEMON_JAVA_OPTS": light,
        "JAVA_HOME": str(locate.java(*_SPARK_JAVA).parents[1]),
        "PYSPARK_PYTHON": str(python),
        "PYSPARK_DRIVER_PYTHON": str(python),
        # The launcher is a Java program of its own, before the server.
        "SPARK_LAUNCHER_OPTS": light,
    }


def master(plan: Plan) -> Server:
    """Return the standalone master."""
    env = _spark_env()
    # Its REST submission server listens on a fixed port, and nothing here uses it.
    env["SPARK_MASTER_OPTS"] = "-Dspark.master.rest.enabled=false"
    ports = plan.ports
    return Server(
        name="master",
        url=f"spark://{LOOPBACK}:{ports['master']}",
        command=[
            f"{env['SPARK_HOME']}/bin/spark-class",
            *("org.apache.spark.deploy.master.Master", "--host", LOOPBACK),
            *("--port", str(ports["master"]), "--webui-port", str(ports["master_ui"])),
        ],
        env=env,
        ready=lambda: _master_json(plan)["status"] == "ALIVE",
    )


def worker(plan: Plan, number: int) -> Server:
    """Return one standalone worker of one core; its executors are real processes."""
    env = _spark_env()
    name = f"worker_{number}"
    port = plan.ports[name]
    # Each session copies its jars into the worker's folder: remove those of ended sessions.
    cleanup = "-Dspark.worker.cleanup.enabled=true -Dspark.worker.cleanup.interval=120"
    env["SPARK_WORKER_OPTS"] = f"{cleanup} -Dspark.worker.cleanup.appDataTtl=300"

    def registered() -> bool:
        workers = _master_json(plan)["workers"]
        return any(worker["port"] == port and worker["state"] == "ALIVE" for worker in workers)

    return Server(
        name=name,
        url=plan.url(f"{name}_ui"),
        command=[
            f"{env['SPARK_HOME']}/bin/spark-class",
            *("org.apache.spark.deploy.worker.Worker", "--host", LOOPBACK, "--port", str(port)),
            *("--webui-port", str(plan.ports[f"{name}_ui"]), "--cores", "1", "--memory", "2g"),
            *("--work-dir", str(data_dir(name)), f"spark://{LOOPBACK}:{plan.ports['master']}"),
        ],
        env=env,
        ready=registered,
        # A worker that finds no master retries only after seconds.
        after=("master",),
    )


def _master_json(plan: Plan) -> dict[str, Any]:
    """Return what the master says about itself and its workers."""
    with urllib.request.urlopen(plan.url("master_ui") + "/json/", timeout=5.0) as response:
        answer: dict[str, Any] = json.load(response)
        return answer


def _iceberg_settings(plan: Plan, name: str, uri: str, warehouse: str) -> dict[str, str]:
    """Return the settings of one Iceberg catalog of the Connect server."""
    catalog = f"spark.sql.catalog.{name}"
    return {
        catalog: "org.apache.iceberg.spark.SparkCatalog",
        f"{catalog}.type": "rest",
        f"{catalog}.uri": uri,
        f"{catalog}.warehouse": warehouse,
        f"{catalog}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{catalog}.s3.endpoint": plan.url("s3"),
        f"{catalog}.s3.path-style-access": "true",
        f"{catalog}.s3.access-key-id": plan.access_key,
        f"{catalog}.s3.secret-access-key": plan.secret_key,
        f"{catalog}.client.region": REGION,
    }


def connect(plan: Plan) -> Server:
    """Return a Spark Connect server that holds the catalog's credentials on its own side."""
    # The launcher takes a Connect server for a daemon: spark.driver.memory would be ignored.
    env = _spark_env() | {"SPARK_DAEMON_MEMORY": "1g", "SPARK_DAEMON_JAVA_OPTS": " ".join(_LIGHT)}
    env["PYTHONPATH"] = str(locate.REPO)  # For the daemon below.
    port = plan.ports["connect"]
    settings_file = data_dir("connect") / "server.conf"
    settings = {
        "spark.master": "local[2]",
        "spark.driver.host": LOOPBACK,
        "spark.driver.bindAddress": LOOPBACK,
        "spark.driver.extraClassPath": os.pathsep.join(map(str, locate.jars("spark-jars"))),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": "tests.warm_daemon",
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": str(port),
        "spark.sql.warehouse.dir": str(data_dir("connect") / "warehouse"),
        "spark.sql.extensions": (
            "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
        ),
        **_iceberg_settings(plan, "lake", plan.url("rest"), WAREHOUSE),
    }
    if "nessie" in plan.extras:
        uri = plan.url("nessie") + "/iceberg/"
        settings |= _iceberg_settings(plan, "nessie", uri, NESSIE_WAREHOUSE)

    def listening() -> bool:
        # The server opens its port after its Spark session is up.
        with socket.create_connection((LOOPBACK, port), timeout=5.0):
            return True

    return Server(
        name="connect",
        url=f"sc://{LOOPBACK}:{port}",
        command=[
            f"{env['SPARK_HOME']}/bin/spark-submit",
            *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
            *("--properties-file", str(settings_file), "spark-internal"),
        ],
        env=env,
        prepare=lambda: _write_settings(settings_file, settings),
        ready=listening,
    )
