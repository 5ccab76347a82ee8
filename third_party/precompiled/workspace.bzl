"""The compiler of this machine, as a file that precompiled headers depend on (compiler.sh)."""

def _compiler_impl(repository_ctx):
    script = repository_ctx.path(Label("//third_party/precompiled:compiler.sh"))

    # The compiler is found as Bazel's own toolchain finds it.
    result = repository_ctx.execute([script, repository_ctx.os.environ.get("CC") or "gcc"])
    repository_ctx.file("WORKSPACE", "workspace(name = \"local_compiler\")\n")
    repository_ctx.file("BUILD.bazel", "exports_files([\"compiler.txt\"])\n")
    repository_ctx.file("compiler.txt", result.stdout)

_compiler = repository_rule(
    implementation = _compiler_impl,
    environ = ["CC", "PATH"],
    local = True,
)

def repo():
    _compiler(name = "local_compiler")
