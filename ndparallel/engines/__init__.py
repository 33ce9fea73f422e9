"""The engines: what runs the ranks of a program and carries their messages. The same program runs unchanged
on each.

Idea   An engine gives every rank a transport of two calls: `post`, which never blocks, and `wait`, for one
       named message. Clocks, bytes and numbers are made by gpu.py from these alone, so they are the same on
       every engine. `processes` is one process per rank, `inline` one stack per rank in a single process,
       `mpi` what mpirun has started, anywhere.
Limit  Processes need POSIX: pipes, shared mappings and signals. Elsewhere all ranks run inline.

Glossary
    engine      has `start()`, `begin(program, task) -> PendingRun`, `end()` and `close()`
    task        one program with its hardware and arguments, to be run once by every rank
    transport   what a GPU sends and receives through: `post(target, message)` and `wait(source, what)`, which
                returns the message; a message is a tuple with the fields of Message
"""
