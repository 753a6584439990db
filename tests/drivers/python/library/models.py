"""The models of a small Django application."""

from django.db import models


class Author(models.Model):
    name = models.CharField(max_length=80, unique=True)
    born = models.DateField(null=True)


class Book(models.Model):
    author = models.ForeignKey(Author, on_delete=models.CASCADE, related_name="books")
    title = models.TextField()
    pages = models.IntegerField(default=0)
    extra = models.JSONField(default=dict)
