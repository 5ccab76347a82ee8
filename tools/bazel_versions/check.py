#!/usr/bin/env python3
"""Loads every BUILD, .bzl and MODULE.bazel file as Bazel 7, 8 and 9 would, without any of them.

  tools/bazel_versions/check.py [--root=FOLDER] [--bazel=9]

A Starlark interpreter (starlark-pyo3) runs the files on stubs of what each version has (versions.py, stubs.star): names
that a version lacks, wrong arguments, files and repositories that are not there are found, in macros, in the module
extension and in the BUILD files that repository rules write, too. What is not: everything that comes after loading. No
rule is analyzed, no module is resolved, nothing is compiled.

Each workspace in the tree is loaded: one that has a MODULE.bazel with the repositories that it makes visible; one that
has a WORKSPACE only, which Bazel 7 alone reads, with any. Part of tools/lint.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
# LibTorch's default version, found as libtorch.sh finds it.
LIBTORCH = re.search(
    r"^version (\S+)", (HERE.parent.parent / "third_party/libtorch/versions.txt").read_text(), re.MULTILINE
)[1]


def _import_starlark():
    found = subprocess.run([HERE / "starlark.sh"], stdout=subprocess.PIPE, text=True, check=False)
    if found.returncode:
        sys.exit(found.returncode)
    sys.path.insert(0, found.stdout.strip())


_import_starlark()
sys.path.insert(0, str(HERE))

import starlark  # noqa: E402
from versions import LANGUAGE_RULES, LANGUAGE_SYMBOLS, LOADS, VERSIONS  # noqa: E402

# The answers of the programs that repository rules run: on a machine with a CUDA Toolkit, and on
# one without, whose LibTorch is in a path with spaces.
ANSWERS = {
    "compiler.sh": {True: "gcc 12\n", False: "gcc 12\n"},
    "libtorch.sh": {
        True: f"version={LIBTORCH}\ncxx=20\ntorch=/opt/torch\ncuda=/opt/cuda\ncrt=/opt/crt\ncccl=/opt/cccl\nnccl=/opt/nccl\n",
        False: f"version={LIBTORCH}\ncxx=17\ntorch=/opt/my torch\ncuda=\ncrt=\ncccl=\nnccl=\n",
    },
    "nvcc": {True: "compute_80\ncompute_90\n", False: "compute_80\n"},
    "plotly.sh": {True: "/opt/plotly.min.js\n", False: "/opt/plotly.min.js\n"},
}
TOOLKIT = "/usr/local/cuda"

# Rulesets that Bazel or Debian brings in WORKSPACE mode. They are not libraries. Libraries must be
# named by both kinds of workspace.
RULESETS = re.compile(r"rules_\w+|bazel_skylib|platforms|remote_coverage_tools")

LOADING = object()
REPORTED = "this file does not load, as was said already"
BUILD_NAMES = ("BUILD.bazel", "BUILD")
STUBS = "stubs.star"

# Starlark itself has these names, so in stubs.star the functions that files see under them have
# other names.
RENAMED = {name: name + "_" for name in ("json", "print", "set", "str", "struct")}

STRUCTS = starlark.Globals.extended_by([starlark.LibraryExtension.StructType, starlark.LibraryExtension.Json])
PLAIN = starlark.Globals.standard()


def _dialect(functions, loads=True):
    dialect = starlark.Dialect.standard()
    dialect.enable_def = functions
    dialect.enable_lambda = functions
    dialect.enable_keyword_only_arguments = functions
    dialect.enable_load = loads
    return dialect


BZL = _dialect(functions=True)
BUILD = _dialect(functions=False)
MODULE = _dialect(functions=False, loads=False)


class Workspace:
    """A folder with a MODULE.bazel or a WORKSPACE."""

    def __init__(self, root, folder):
        self.folder = folder
        self.shown = "" if folder == root else str(folder.relative_to(root)) + "/"
        self.is_module = (folder / "MODULE.bazel").exists()
        self.name = ""
        self.understood = False  # whether MODULE.bazel has run to its end
        self.visible = {}  # repository -> whether it is for development only
        self.overrides = {}  # module -> folder
        self.extensions = []  # keys
        self.tags = {}  # key -> tag class -> values
        self.use_repos = {}  # key -> names
        ignored = folder / ".bazelignore"
        self.ignored = [folder / line for line in ignored.read_text().split()] if ignored.exists() else []

    def files(self, suffixes):
        """The files with these endings that belong to packages of this workspace."""
        for folder, folders, names in os.walk(self.folder):
            here = Path(folder)
            folders[:] = sorted(
                name
                for name in folders
                if not name.startswith((".", "bazel-")) and here / name not in self.ignored
            )
            for name in sorted(names):
                if name.endswith(suffixes):
                    yield here / name


class Loader:
    """Loads the files of all workspaces with one version of Bazel. Problems go to `report(where, text)`."""

    def __init__(self, root, bazel, has_toolkit, report):
        self.root = root
        self.bazel = bazel
        self.has_toolkit = has_toolkit
        self._report = report
        self._frozen = {}  # (context, file) -> its module, None if it does not load
        self.loaded = set()
        self.workspaces = self._find_workspaces()
        self.main = self.workspaces[0]
        # The state that belongs to the workspace that is being loaded:
        self.workspace = self.main
        self.repositories = {}  # repositories that rules made -> their files
        self.makers = {}  # repositories that rules made -> the workspace that asked for them
        self.owner = self.main  # the workspace whose repositories labels may name now
        self.phase = "load"  # package, extension, module, workspace
        self.package = None  # the package's folder; None in a repository that was made
        self.names = set()
        self.resolving = False  # while MODULE.bazel files run
        self._stubs()

    def _find_workspaces(self):
        folders = {self.root}
        for folder, subfolders, names in os.walk(self.root):
            subfolders[:] = [name for name in subfolders if not name.startswith((".", "bazel-"))]
            if "MODULE.bazel" in names or "WORKSPACE" in names:
                folders.add(Path(folder))
        workspaces = [Workspace(self.root, folder) for folder in sorted(folders)]
        for workspace in workspaces:
            # The module's name is read before MODULE.bazel is run, for modules that depend on it.
            for file in ("MODULE.bazel", "WORKSPACE"):
                if (workspace.folder / file).exists() and not workspace.name:
                    named = re.search(r'\b(?:module|workspace)\(\s*name = "(\w+)"', (workspace.folder / file).read_text())
                    workspace.name = named.group(1) if named else ""
        return workspaces

    # --- The stubs --------------------------------------------------------------------------------------------------

    def _stubs(self):
        module = starlark.Module()
        for name in dir(self):
            if name.startswith("host_"):
                module.add_callable(name, getattr(self, name))
        starlark.eval(module, starlark.parse(STUBS, (HERE / STUBS).read_text(), BZL), STRUCTS)
        self._internal = {"stubs": module.freeze()}
        rules = sorted({*self.bazel.rules, *LANGUAGE_RULES})
        self._add_internal(
            "rules",
            'load("stubs", "native_rule")\n' + "".join(f'{name} = native_rule("{name}")\n' for name in rules),
        )
        for context, members in (
            ("package", [*self.bazel.rules, *self.bazel.native_functions]),
            # Both functions ask about the workspace, which a module extension does not have.
            ("extension", ["existing_rule", "existing_rules"]),
            ("workspace", ["existing_rule", "existing_rules", *self.bazel.workspace]),
        ):
            version = "" if context == "package" else f'bazel_version = "{self.bazel.release}", '
            members = sorted(set(members))
            self._add_internal(
                "native_" + context,
                f'{self._loads(members)}load("stubs", "struct_")\n'
                f"native = struct_({version}{', '.join(f'{name} = {name}' for name in members)})\n",
            )

    def _add_internal(self, name, text):
        module = starlark.Module()
        starlark.eval(module, starlark.parse(name, text, BZL), PLAIN, starlark.FileLoader(self._internal.__getitem__))
        self._internal[name] = module.freeze()

    def _loads(self, names):
        """The text that makes names of stubs known to a file."""
        rules = [name for name in names if name in {*self.bazel.rules, *LANGUAGE_RULES}]
        others = [f'{name} = "{RENAMED.get(name, name)}"' for name in names if name not in rules]
        text = f'load("rules", {", ".join(map(repr_, rules))})\n' if rules else ""
        return text + (f'load("stubs", {", ".join(others)})\n' if others else "")

    def _external(self, repository, file):
        """The known contents of a file of another repository."""
        key = f"{repository}//{file}"
        if key not in self._internal:
            names = sorted(set(self.bazel.externals[repository, file]))
            text = 'load("stubs", "native_repository", stub_struct = "struct_")\n'
            for name in names:
                if name in LANGUAGE_RULES:
                    text += f'load("rules", stub_{name} = "{name}")\n{name} = stub_{name}\n'
                elif name in LANGUAGE_SYMBOLS:
                    text += f'load("stubs", stub_{name} = "{name}")\n{name} = stub_{name}\n'
                elif name.endswith(("_archive", "_file", "_jar", "_repository")):
                    text += f'{name} = native_repository("{name}")\n'
                else:
                    text += f"def {name}(*args, **kwargs):\n    return []\n"
            self._add_internal(key, text)
        return self._internal[key]

    # --- Running a file ---------------------------------------------------------------------------------------------

    def _run(self, shown, text, dialect, prelude, phase, load):
        """Runs a file. Returns its module; if it fails, reports that and returns None."""
        before, self.phase = self.phase, phase
        module = starlark.Module()
        try:
            starlark.eval(module, starlark.parse("stubs", prelude, BZL), PLAIN, starlark.FileLoader(load))
            starlark.eval(module, starlark.parse(shown, text, dialect), PLAIN, starlark.FileLoader(load))
            return module.freeze()
        except starlark.StarlarkError as error:
            if REPORTED not in str(error):
                self._report(*explain(str(error), shown, self.bazel))
            return None
        finally:
            self.phase = before

    def _file_loader(self, context, workspace, package):
        """The function `load` for a file of that package."""

        def load(label):
            if label in self._internal:
                return self._internal[label]
            module = self._load(label, context, workspace, package)
            if module is None:
                raise ValueError(REPORTED)
            return module

        return load

    def _load(self, label, context, workspace, package):
        matched = re.fullmatch(r"(?:@@?([\w.+~-]*))?(?://([^:]*))?(?::(.+))?", label)
        if not matched or (matched[2] is None and not matched[3]):
            raise ValueError(f"load(\"{label}\"): that is not a label")
        repository, folder, file = matched.groups()
        if folder is None:
            folder = package
        file = file or folder.rpartition("/")[2]
        if isinstance(workspace, str):
            # The file was written by a repository rule.
            repository = workspace if repository is None else repository
            workspace = self.makers[workspace]
        if repository and repository != workspace.name:
            self._check_visible(repository, label, workspace)
            if workspace is self.main and workspace.visible.get(repository):
                raise ValueError(
                    f"load(\"{label}\"): modules that depend on this one do not have {repository}, a dev_dependency"
                )
            target = self._module(repository, workspace)
            if target is None and repository in self.repositories:
                return self._load_made(repository, folder, file, context)
            if (repository, f"{folder}:{file}") in self.bazel.externals:
                return self._external(repository, f"{folder}:{file}")
            if target is None:
                raise ValueError(
                    f"nothing is known of @{repository}//{folder}:{file} in Bazel {self.bazel.major}"
                    " (tools/bazel_versions/versions.py)"
                )
            workspace = target
        path = workspace.folder / folder / file
        if not path.is_file():
            raise ValueError(f"load(\"{label}\"): there is no file {path.relative_to(self.root)}")
        if not any((path.parent / name).exists() for name in BUILD_NAMES):
            raise ValueError(f"load(\"{label}\"): {path.parent.relative_to(self.root)} has no BUILD file")
        return self._load_path(path, context, workspace, folder)

    def _module(self, repository, workspace):
        """The workspace in this tree that another workspace knows by that name."""
        folder = workspace.overrides.get(repository)
        for each in self.workspaces:
            if each.folder == folder or (not workspace.is_module and each is self.main and each.name == repository):
                return each
        return None

    def _load_path(self, path, context, workspace, package):
        shown = str(path.relative_to(self.root))
        return self._load_text((shown, path.read_text()), context, workspace, package)

    def _load_made(self, repository, package, file, context):
        name = f"{package}/{file}" if package else file
        files = self.repositories[repository]
        if name not in files:
            raise ValueError(f"the rule of the repository {repository} writes no {name}, but {', '.join(sorted(files))}")
        return self._load_text((f"@{repository}//{name}", files[name]), context, repository, package)

    def _load_text(self, file, context, workspace, package):
        key = (context, file)
        shown, text = file
        if self._frozen.get(key) is LOADING:
            raise ValueError(f"{shown} loads this file, which loads it")
        if key not in self._frozen:
            self._frozen[key] = LOADING
            prelude = self._loads([*self.bazel.bzl, "str"]) + f'load("native_{context}", "native")\n'
            load = self._file_loader(context, workspace, package)
            self._frozen[key] = self._run(shown, text, BZL, prelude, "load", load)
            self.loaded.add(shown)
        return self._frozen[key]

    def _check_visible(self, repository, label, workspace):
        # Extensions are loaded twice: first for the names of their tags, before MODULE.bazel says
        # what is visible, and later again.
        if not workspace.is_module or not workspace.understood or self.resolving or repository in ("", "bazel_tools"):
            return
        if repository not in workspace.visible and repository not in self.repositories:
            raise ValueError(
                f"{label}: MODULE.bazel makes no repository {repository} visible (bazel_dep, use_repo)"
            )

    # --- Packages ---------------------------------------------------------------------------------------------------

    def _build(self, shown, text, workspace, package, folder):
        """Loads one BUILD file; `folder` is None if its files are not known."""
        self.package = folder
        self.names = set()
        self.owner = self.makers[workspace] if isinstance(workspace, str) else workspace
        self._run(
            shown, text, BUILD, self._loads(self.bazel.build), "package",
            self._file_loader("package", workspace, package),
        )
        self.loaded.add(shown)

    def load_workspace(self, workspace):
        """Loads all files of a workspace."""
        self.workspace = self.owner = workspace
        self.repositories = {}
        self._frozen = {}
        defined = None
        if self.bazel.workspace and (workspace.folder / "WORKSPACE").exists():
            self._workspace_file(workspace)
            defined = set(self.repositories)
            self._made_packages()
        if workspace.is_module:
            self.repositories = {}
            self._frozen = {}
            self._run_extensions(workspace)
            if defined is not None and workspace.understood:
                self._check_step(workspace, defined)
            self._made_packages()
        for path in workspace.files(("BUILD.bazel", "BUILD")):
            package = package_of(path, workspace)
            # BUILD files for other repositories, such as system.BUILD.bazel, do not belong to this
            # package.
            folder = path.parent if path.name in BUILD_NAMES else None
            self._build(str(path.relative_to(self.root)), path.read_text(), workspace, package, folder)
        for path in workspace.files((".bzl",)):
            self._load_path(path, "package", workspace, package_of(path, workspace))

    def _made_packages(self):
        """Loads the BUILD files that repository rules wrote."""
        for name, files in sorted(self.repositories.items()):
            for path, text in sorted(files.items()):
                folder, _, file = path.rpartition("/")
                if file in BUILD_NAMES:
                    self._build(f"@{name}//{path}", text, name, folder, None)

    def _workspace_file(self, workspace):
        path = workspace.folder / "WORKSPACE"
        shown = str(path.relative_to(self.root))
        prelude = self._loads([*self.bazel.workspace, "print"])
        self._run(shown, path.read_text(), BUILD, prelude, "workspace", self._file_loader("workspace", workspace, ""))
        self.loaded.add(shown)

    # --- Modules ----------------------------------------------------------------------------------------------------

    def load_modules(self):
        """Runs the MODULE.bazel files, each of which may override another."""
        self.resolving = True
        for workspace in self.workspaces:
            if workspace.is_module:
                self._module_file(workspace)
        self.resolving = False

    def _module_file(self, workspace):
        self.workspace = self.owner = workspace
        path = workspace.folder / "MODULE.bazel"
        shown = str(path.relative_to(self.root))
        text = path.read_text()
        # The overrides are read before the file runs, because the extension's file is in one of
        # these modules.
        for name, folder in re.findall(r'local_path_override\(\s*module_name = "([\w.-]+)",\s*path = "([^"]+)"', text):
            workspace.overrides[name] = (workspace.folder / folder).resolve()
            workspace.visible.setdefault(name, False)
        extensions = sorted(set(re.findall(r'use_extension\(\s*"([^"]+)",\s*"(\w+)"', text)))
        # Extensions of modules outside this tree are not known; use_extension then reports that.
        prelude = "".join(
            f'load("{label}", extension_{i} = "{name}")\n' for i, (label, name) in enumerate(extensions)
        )
        prelude += 'load("stubs", stub_use_extension_of = "use_extension_of")\n'
        table = ", ".join(f'"{label}%{name}": extension_{i}' for i, (label, name) in enumerate(extensions))
        prelude += f"use_extension = stub_use_extension_of({{{table}}})\n"
        prelude += self._loads([name for name in self.bazel.module if name != "use_extension"])
        load = self._file_loader("extension", workspace, "")
        # If MODULE.bazel fails, the rest of the file is not run, and mistakes in the rest are not
        # reported.
        workspace.understood = self._run(shown, text, MODULE, prelude, "module", load) is not None
        self.loaded.add(shown)

    def _extension_of(self, workspace, key):
        """(the workspace that has the extension, its label there)."""
        label = key.rpartition("%")[0]
        repository = re.match(r"@([\w.-]+)(//.*)", label)
        if not repository:
            return workspace, label
        target = workspace if repository[1] == workspace.name else self._module(repository[1], workspace)
        return target, repository[2]

    def _run_extensions(self, root):
        """Runs the extensions that a root module and its dependencies in this tree use."""
        modules = [root] + [each for each in self.workspaces if each.folder in root.overrides.values()]
        wanted = {}  # (workspace, label, name) -> [(module, key)]
        for module in modules:
            for key in module.extensions:
                wanted.setdefault((*self._extension_of(module, key), key.rpartition("%")[2]), []).append((module, key))
        for (workspace, label, name), users in wanted.items():
            before = set(self.repositories)
            values = [
                {"name": user.name, "is_root": user is root, "tags": user.tags.get(key, {})} for user, key in users
            ]
            text = f'load("stubs", "run_extension")\nload("{label}", extension = "{name}")\n' \
                f"run_extension(extension, {values!r})\n"
            self.owner = workspace
            if not self._run(
                f"the extension {name} for {root.shown}MODULE.bazel", text, BZL, "", "extension",
                self._file_loader("extension", workspace, ""),
            ):
                continue
            made = set(self.repositories) - before
            for user, key in users:
                for wrong in sorted(set(user.use_repos.get(key, [])) - made):
                    self._report(
                        f"{user.shown}MODULE.bazel",
                        f"use_repo: the extension {name} makes no repository {wrong}, but {', '.join(sorted(made))}",
                        [],
                    )

    def _check_step(self, workspace, defined):
        """Reports libraries that only one kind of workspace has."""
        visible = {name for name in workspace.visible if not RULESETS.fullmatch(name)}
        defined = {name for name in defined if not RULESETS.fullmatch(name)}
        for names, has, lacks in ((defined - visible, "WORKSPACE", "MODULE.bazel"), (visible - defined, "MODULE.bazel", "WORKSPACE")):
            for name in sorted(names):
                self._report(
                    f"{workspace.shown}{lacks}",
                    f"the repository {name} is in {has} only: a workspace of the other kind lacks it",
                    [],
                )

    # --- The functions that stubs call
    # ---------------------------------------------------------------------------------

    def _in_package(self, what):
        if self.phase != "package":
            raise ValueError({
                "extension": f"{what} means nothing in a module extension",
                "workspace": f"{what} means nothing in WORKSPACE",
            }.get(self.phase, f"{what} is called while a file is loaded, by no BUILD file"))

    def host_top_level(self, what):
        if self.phase != "load":
            raise ValueError(f"{what}() is called by a function, not while its .bzl file is loaded")

    def host_label(self, text):
        self.host_labels([text])
        package, _, name = text.partition("//")[2].partition(":")
        return ["@@" + text if text.startswith("//") else text, package, name or package.rpartition("/")[2]]

    def host_labels(self, values):
        for text in strings_of(values):
            repository = re.match(r"@([\w.-]+)//[^ ]*$", text)
            if repository and repository[1] != self.owner.name:
                self._check_visible(repository[1], text, self.owner)

    def host_rule(self, kind, attributes):
        self._in_package(kind + "()")
        name = attributes.get("name")
        if not isinstance(name, str) or not name:
            raise ValueError(f"{kind}() needs a name, not {name!r}")
        if name in self.names:
            raise ValueError(f"{kind}(name = \"{name}\"): the package has a target of that name already")
        self.names.add(name)
        if "distribs" in attributes and not self.bazel.distribs:
            raise ValueError(f"{kind}(name = \"{name}\"): Bazel {self.bazel.major} has no attribute distribs")
        for option in strings_of(attributes.get("linkopts", [])):
            if " " in option:
                raise ValueError(f"{kind}(name = \"{name}\"): Bazel splits linkopts at spaces: \"{option}\"")
        self.host_labels(list(attributes.values()))

    def host_package(self, attributes):
        self._in_package("a function of packages")
        if "distribs" in attributes and not self.bazel.distribs:
            raise ValueError(f"package(): Bazel {self.bazel.major} has no attribute distribs")
        return "" if self.package is None else str(self.package.relative_to(self.workspace.folder)).removeprefix(".")

    def host_existing(self, name):
        if self.phase == "workspace":
            return {"name": name} if name in self.repositories else None
        self._in_package("native.existing_rule()")
        return {"name": name} if name in self.names else None

    def host_glob(self, include, exclude, allow_empty):
        self._in_package("glob()")
        if self.package is None:
            return []
        files = files_of_package(self.package)
        if allow_empty is None:
            allow_empty = self.bazel.empty_glob
        found = set()
        for pattern in include:
            matches = {file for file in files if glob_pattern(pattern).fullmatch(file)}
            if not matches and not allow_empty:
                raise ValueError(
                    f"glob: \"{pattern}\" matches no file, which Bazel {self.bazel.major} allows with allow_empty = True only"
                )
            found |= matches
        return sorted(file for file in found if not any(glob_pattern(each).fullmatch(file) for each in exclude))

    def host_repository(self, name):
        if self.phase not in ("extension", "workspace"):
            raise ValueError(f"the repository {name} is defined by neither WORKSPACE nor a module extension")
        if name in self.repositories:
            raise ValueError(f"the repository {name} is defined twice")
        self.repositories[name] = {}
        self.makers[name] = self.owner

    def host_repository_prefix(self):
        return "" if self.phase == "workspace" else "gpipe++gpipe+"

    def host_exists(self, text):
        return self.has_toolkit or not text.startswith(TOOLKIT)

    def host_execute(self, arguments):
        program = re.split("[/:]", arguments[0])[-1]
        answer = ANSWERS.get(program, {}).get(self.has_toolkit)
        if answer is None:
            raise ValueError(f"{arguments[0]}: check.py does not know what it answers (ANSWERS)")
        return [0, answer, ""]

    def _project_file(self, label):
        matched = re.fullmatch(r"@@//([^:]*):(.+)", label)
        if not matched:
            return None
        path = self.root / matched[1] / matched[2]
        if not path.is_file():
            raise ValueError(f"there is no file {path.relative_to(self.root)}")
        return path.read_text()

    def host_read(self, path):
        return self._project_file(path) or ""

    def host_file(self, repository, path, content):
        self.repositories[repository][path] = content

    def host_symlink(self, repository, target, link):
        text = self._project_file(target)
        if text is not None:
            self.repositories[repository][link] = text

    def host_module(self, name, repo_name):
        self.workspace.name = repo_name or name

    def host_dep(self, name, repo_name, dev):
        # If repo_name is None, the repository is not visible.
        if repo_name:
            if self.workspace.visible.get(repo_name) is not None and name not in self.workspace.overrides:
                raise ValueError(f"the repository name {repo_name} is given twice")
            self.workspace.visible[repo_name] = bool(dev)

    def host_override(self, name, path):
        if not any((self.workspace.folder / path / file).exists() for file in ("MODULE.bazel",)):
            raise ValueError(f"local_path_override: {path} has no MODULE.bazel")

    def host_use_extension(self, key):
        if key not in self.workspace.extensions:
            self.workspace.extensions.append(key)

    def host_tag(self, key, tag_class, values):
        self.workspace.tags.setdefault(key, {}).setdefault(tag_class, []).append(values)

    def host_use_repo(self, key, names, dev):
        for visible in names:
            self.workspace.visible[visible] = bool(dev)
        self.workspace.use_repos.setdefault(key, []).extend(names.values())


def repr_(text):
    return f'"{text}"'


def package_of(path, workspace):
    """The package of a file that has a BUILD file beside it."""
    folder = str(path.parent.relative_to(workspace.folder))
    return "" if folder == "." else folder


def strings_of(value):
    """All strings in lists and dicts of whatever depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from strings_of(key)
            yield from strings_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from strings_of(each)


def files_of_package(package):
    """Its files, relative to it, without those of packages below."""
    found = []
    for folder, folders, names in os.walk(package):
        here = Path(folder)
        folders[:] = [name for name in folders if not any((here / name / build).exists() for build in BUILD_NAMES)]
        found += [str((here / name).relative_to(package)) for name in names]
    return found


def glob_pattern(pattern):
    """Bazel's glob patterns: * within a folder, ** for any number of folders."""
    parts = []
    for part in pattern.split("/"):
        parts.append("(?:[^/]+/)*" if part == "**" else re.escape(part).replace(r"\*", "[^/]*") + "/")
    text = "".join(parts)
    return re.compile(text + "[^/]+" if pattern.endswith("**") else text[:-1])


def explain(error, shown, bazel):
    """(where, what, calls) of the interpreter's message."""
    places = re.findall(r"^  \* (.+):(\d+), in ", error, re.MULTILINE)
    last = re.search(r"^ *--> (.+):(\d+):\d+$", error, re.MULTILINE)
    if last:
        places.append(last.groups())
    known = [f"{file}:{line}" for file, line in places if file not in ("stubs", STUBS, "rules")]
    text = re.search(r"^error: (.*?)(?=^ *-->|\Z)", error, re.MULTILINE | re.DOTALL)
    what = (text.group(1) if text else error).strip()
    what = re.sub(r"^(fail|ValueError): ", "", what)
    name = re.search(r"(?:Variable|no attribute) `(\w+)`", what)
    if name and name[1] in LOADS:
        what += f'\n    Bazel {bazel.major} has none of its own: load("{LOADS[name[1]]}", "{name[1]}")'
    calls = list(dict.fromkeys(reversed(known)))
    where = calls[0] if calls else shown
    return where, what, calls[1:]


def check(root, majors, out):
    """Loads all below `root`. Prints problems to `out`; returns whether there was none."""
    good = True
    for major in majors:
        bazel = VERSIONS[major]
        problems = {}

        def report(where, what, calls, problems=problems):
            problems.setdefault((where, what), calls)

        loaded = set()
        for has_toolkit in (True, False):
            loader = Loader(root, bazel, has_toolkit, report)
            loader.load_modules()
            for workspace in loader.workspaces:
                loader.load_workspace(workspace)
            loaded |= loader.loaded
        for (where, what), calls in problems.items():
            print(f"{where}: Bazel {major}: {what}", file=out)
            for call in calls:
                print(f"    called by {call}", file=out)
        good = good and not problems
        own = [file for file in loaded if not file.startswith("@")]
        builds = [file for file in own if Path(file).name.endswith(("BUILD", "BUILD.bazel"))]
        print(
            f"Bazel {major} ({bazel.release}, stubs): {len(builds)} BUILD,"
            f" {sum(file.endswith('.bzl') for file in own)} .bzl,"
            f" {sum(file.endswith('MODULE.bazel') for file in own)} MODULE.bazel files loaded,"
            f" {len(loaded) - len(own)} that repository rules write; problems: {len(problems)}",
            file=out,
        )
    return good


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--root", type=Path, default=HERE.parent.parent)
    parser.add_argument("--bazel", choices=sorted(VERSIONS), action="append", help="default: all")
    arguments = parser.parse_args()
    sys.exit(0 if check(arguments.root.resolve(), arguments.bazel or sorted(VERSIONS), sys.stdout) else 1)


if __name__ == "__main__":
    main()
