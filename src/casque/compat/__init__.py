"""Other queues' names and files, for programs that move to casque.

`jqueue` is a drop-in for the package of that name. `files` reads the stored queues of jqueue and osqueue; `casque queue
import` enqueues what it finds. Everything here stands on `casque.client`; nothing in casque depends on it except that
command.
"""
