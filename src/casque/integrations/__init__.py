"""Web frameworks: Django's tasks on a queue of casque's, and an app for FastAPI.

Each integration is a module that is imported only by those who use it; casque itself depends on no framework.
"""
