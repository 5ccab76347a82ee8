"""What a workspace that uses GPipe calls once, after `local_repository` or `http_archive`."""

load("//third_party:workspace.bzl", "third_party_repositories")

def gpipe_dependencies():
    """Defines every repository that GPipe needs, each only if the workspace has not done so before.

    To use an own Abseil, GoogleTest, Google Benchmark, glog or JSON, define the repository under its
    usual name before this call.
    """
    third_party_repositories()
