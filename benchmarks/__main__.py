"""`python -m benchmarks`, from the root of the repository."""

if __name__ == "__main__":  # the processes of the sides import this file too
    from benchmarks.timing import use_one_thread

    use_one_thread()

    from benchmarks.cli import app

    app(prog_name="python -m benchmarks")
