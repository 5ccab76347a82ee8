load("//third_party:system.bzl", "system_library")

def repo():
    system_library(
        name = "com_google_googletest",
        build_file = Label("//third_party/com_google_googletest:system.BUILD.bazel"),
        package = "libgtest-dev libgmock-dev",
        probe = "src/googletest/googletest/src/gtest-all.cc",
        links = {
            "googlemock": "src/googletest/googlemock",
            "googletest": "src/googletest/googletest",
        },
    )
