"""Columns and an index that is made outside a transaction."""

from django.contrib.postgres.operations import AddIndexConcurrently
from django.db import migrations, models


def add_one(apps, schema_editor):
    apps.get_model("library", "Author").objects.create(name="from the migration")


def remove_one(apps, schema_editor):
    apps.get_model("library", "Author").objects.filter(name="from the migration").delete()


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("library", "0001_initial")]
    operations = [
        migrations.AddField("author", "born", models.DateField(null=True)),
        migrations.AddField("book", "extra", models.JSONField(default=dict)),
        migrations.RunPython(add_one, remove_one),
        AddIndexConcurrently("book", models.Index(fields=["title"], name="book_title")),
    ]
