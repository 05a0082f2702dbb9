"""Schema `eai`, first version: the files of `0001/`, in this order.

A later change is a file of its own beside this one (`v0002_<what>.py`, with `down_revision = "0001"`, its SQL in
`0002/`) and the new HEAD in `contracts/migrations/__init__.py`; a version that was released is never edited.
"""

from pathlib import Path

from alembic import op

revision = "0001"
down_revision = None

PARTS = ("platform", "results", "ledger", "oversight", "watch", "memory", "guards", "access")


def upgrade() -> None:
    for part in PARTS:
        statements = (Path(__file__).parent / revision / f"{part}.sql").read_text(encoding="utf-8")
        op.get_bind().exec_driver_sql(statements, execution_options={"no_parameters": True})


def downgrade() -> None:
    raise NotImplementedError("the ledger is never migrated downwards: restore a backup")
