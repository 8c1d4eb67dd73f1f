"""A folder for the front of the path of a program that is checked: see sitecustomize.py."""
