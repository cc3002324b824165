"""``deepvm help TOPIC``: what people look for that is no command, each in one screen of 80 x 24."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Topic:
    """One screen.

    Attributes:
        names: the first is shown, the others are understood. line: in the list of topics.
        idea: paragraphs. options: the few that matter, each with a line. examples: commands that
            run as they stand.
        page: of the documentation.
    """

    names: tuple[str, ...]
    line: str
    idea: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    examples: tuple[str, ...]
    page: str


TOPICS = (
    Topic(
        ("budget", "pw", "money", "dollars", "cheapest"),
        "How much to spend, and what is best for it.",
        (
            (
                "You say what the whole cluster may cost in an hour, and get the fastest one for"
                " that. What is cheaper for the same work stands beside it as 'best value';"
                " --objective makes that the first choice."
            ),
        ),
        (
            ("--budget 3, --pw 3, or just 3", "dollars an hour, for all VMs together"),
            ("--objective cost-per-work", "the least money for the work, however long it takes"),
            (
                "--total-budget 200",
                "dollars for the whole job; it needs the work, see 'deepvm help time'",
            ),
            (
                "--disk 200GB --egress 50GB",
                "what comes besides VMs: counted in the bill, not in the budget",
            ),
        ),
        ("deepvm recommend 3", "deepvm sweep --pw 1:5:1"),
        "docs/guide/plan.md",
    ),
    Topic(
        ("models", "model", "workload", "workloads", "training", "method", "batch", "precision"),
        "Say what you train: a preset, a size, or a file.",
        (
            (
                "Speed, GPU memory and the size of checkpoints follow from the model and from how"
                " it is trained. Without --model a ResNet-50 is assumed. 'deepvm performance"
                " models' lists the presets."
            ),
        ),
        (
            ("--model llama-8b", "a preset, or a .yaml file that describes yours"),
            ("--params 7B --seq 4096", "instead: any language model by its size"),
            ("--method fsdp", "ddp: all of it on each GPU; fsdp: sharded; lora: adapters only"),
            ("--batch-per-gpu 8", "or --global-batch 256, which stays the same on any cluster"),
        ),
        (
            "deepvm recommend 30 --model llama-8b --method fsdp",
            "deepvm gpus --params 3B --method lora",
        ),
        "docs/explain/performance.md",
    ),
    Topic(
        ("time", "bill", "work", "job", "deadline", "tokens", "epochs", "duration"),
        "How long a whole training takes, and what it costs.",
        (
            (
                "Say how much there is to train, and each cluster gets a time and a bill: at the"
                " predicted speed, less what spot VMs lose to preemptions."
            ),
        ),
        (
            ("--tokens 2B", "or --samples 50M, or --epochs 90 --dataset-size 1.28M"),
            ("--work 100", "instead: the hours that one VM would take"),
            ("--deadline 24h", "only clusters that are expected to finish by then"),
            ("--mttp 3h", "how long a spot VM lives on average, if you know better"),
        ),
        ("deepvm recommend 30 --model llama-8b --method fsdp --tokens 2B --deadline 24h",),
        "docs/guide/plan.md",
    ),
    Topic(
        ("vms", "vm", "types", "type", "instances", "instance-types", "filters", "gpu", "cpu"),
        "Restrict what may be rented.",
        (
            (
                "All GPU types of the catalog are considered unless you restrict them. Options that"
                " take a GLOB know * and ?, and may be repeated; GPU models match in any case."
            ),
        ),
        (
            ("--gpu A100", "only these GPU models; --gpu-memory-min 40GB: with enough memory"),
            ("--instance-type 'g5.*'", "only these types train; --exclude: all but these"),
            ("--max-nodes 8", "how many VMs train together at most"),
            ("--quota none", "as if your account had no limits; see 'deepvm help quotas'"),
        ),
        ("deepvm recommend 20 --gpu A10G --max-nodes 8", "deepvm explain p5.48xlarge --pw 20"),
        "docs/guide/plan.md",
    ),
    Topic(
        ("spot", "preemption", "preemptions", "interruption", "interruptions", "risk", "on-demand"),
        "What spot VMs save, and what preemptions cost.",
        (
            (
                "Spot VMs cost a third to a half, and may be taken away at any time. Then training"
                " goes back to its last checkpoint. A range says how much that loses at a good"
                " time, when VMs live for months, and at a bad one, when they live for hours; 'no"
                " spot' is the best cluster without such VMs."
            ),
        ),
        (
            ("--mttp 3h", "mean time to preemption of a spot VM, in place of that range"),
            ("--price-basis p95", "plan with the price of bad days; needs AWS credentials"),
            ("--architecture tiering", "how checkpoints survive; see 'deepvm help architectures'"),
        ),
        (
            "deepvm recommend 3 --why",
            "deepvm simulate --preset gpt-1.3b --compare static:33,adaptive --runs 20",
        ),
        "docs/guide/simulate.md",
    ),
    Topic(
        (
            "architectures",
            "architecture",
            "tiering",
            "single-anchor",
            "spot-storage",
            "memory-nodes",
        ),
        "Which VMs train, and which keep the checkpoints.",
        (
            (
                "single-anchor: one of the VMs that train is on demand and keeps the checkpoints."
                " tiering: all that train are spot VMs, and on-demand CPU VMs hold checkpoints in"
                " memory. spot-storage: spot VMs alone, checkpoints go to a bucket. on-demand: no"
                " spot VM. The best of all four is first unless you choose."
            ),
        ),
        (
            ("--architecture tiering", "only this one; may be repeated"),
            ("--memory-node 'm6i.*'", "only these types hold checkpoints"),
            ("--buffers 2", "how many checkpoints they must have room for"),
        ),
        ("deepvm recommend 3 --architecture tiering --why",),
        "docs/explain/method.md",
    ),
    Topic(
        ("checkpoints", "state", "saving", "save", "resume"),
        "Checkpoint a training run and resume it after a preemption.",
        (
            (
                "Checkpointer of deepvm.checkpoint saves in the background, to a file, a bucket or"
                " the memory of another machine (deepvm memory-node serve). A loop over its steps,"
                " 'for step in ck.steps(10_000):', restores the newest version that is complete and"
                " undamaged, and saves between two iterations: all that an iteration did, and"
                " nothing of the next. 'deepvm ckpt' lists, verifies and cleans up versions."
            ),
            "For a plan, only the size matters; it follows from the model.",
        ),
        (
            ("--checkpoint-size 1.4GB", "of a plan: yours, not the model's"),
            ("--save-policy every:10min", "of a plan with a job: when versions are saved"),
        ),
        ("deepvm ckpt --help", "deepvm recommend 3 --checkpoint-size 1.4GB"),
        "docs/guide/checkpoint.md",
    ),
    Topic(
        (
            "running",
            "launch",
            "notice",
            "notices",
            "machines",
            "controller",
            "orchestrator",
            "rehearse",
        ),
        "Train on machines that vanish, here first, then on a cloud.",
        (
            (
                "'deepvm run' rents the machines of a job file or a plan, has the training save"
                " before one is taken back, replaces it, goes on from that step, and stops in time."
                " Local machines cost nothing and are taken back on purpose: rehearse with them."
                " 'deepvm jobs' watches, saves, stops and resumes."
            ),
            "'deepvm agent' does the machine's part alone, under any engine that starts machines.",
        ),
        (
            ("--cloud local", "machines on this computer; default: the job file's"),
            ("--dry-run", "only show what would be rented"),
            ("--detach", "return at once; the job goes on in the background"),
        ),
        ("deepvm run --help", "deepvm jobs --help"),
        "docs/guide/run.md",
    ),
    Topic(
        (
            "prices",
            "cloud",
            "clouds",
            "region",
            "regions",
            "zone",
            "zones",
            "aws",
            "credentials",
            "offline",
            "catalogs",
        ),
        "Where prices come from, how old they are, other regions.",
        (
            (
                "With AWS credentials prices are AWS's own; without, those of a public catalog,"
                " else of the snapshot that comes with deepvm, and a note says how old they are."
                " 'deepvm doctor' checks what live prices need, and 'deepvm catalog status' shows"
                " what is at hand."
            ),
        ),
        (
            ("--cloud gcp", "azure, lambda, nebius, runpod; all: every cloud in one table"),
            ("--region us-west-2", "repeat it to compare several; all: every region"),
            ("--prices live", "today's or an error; snapshot: no request is sent"),
            ("--offline", "what was fetched last, or the snapshot"),
            ("--catalog FILE.csv", "your own types and prices; 'deepvm catalog schema'"),
        ),
        ("deepvm recommend 3 --prices snapshot", "deepvm catalog status"),
        "docs/guide/plan.md",
    ),
    Topic(
        ("quotas", "quota", "limits", "vcpus"),
        "How many VMs your account may start.",
        (
            (
                "A cloud limits the vCPUs of each family and market; a new account has 0 for GPUs."
                " With credentials your quotas are known and no plan exceeds them. Without, the"
                " answer names what its first row needs, and 'deepvm doctor' shows what you have."
            ),
        ),
        (
            ("--quota FILE.json", "limits of your own, by family and market"),
            ("--quota none", "no limits"),
        ),
        ("deepvm recommend 30 --quota none",),
        "docs/guide/plan.md",
    ),
    Topic(
        ("measure", "measuring", "measurements", "benchmarks", "eflops"),
        "Measure your own machines in place of predictions.",
        (
            (
                "'deepvm profile' measures how fast a VM trains (eflops), how much faster several"
                " are (scaling), and how many may save to one memory node (saturation). With"
                " --save, the results are in your tables, and every later plan uses them where the"
                " model agrees. --why of recommend ends with what is worth measuring next."
            ),
        ),
        (
            ("--tables paper", "plan without your measurements"),
            ("--workload NAME", "plan with the measurements of this model"),
        ),
        ("deepvm profile --help", "deepvm tables list"),
        "docs/guide/profile.md",
    ),
    Topic(
        ("doubt", "doubts", "intervals", "interval", "uncertainty", "accuracy", "source"),
        "How sure a figure is, and where it comes from.",
        (
            (
                "A range behind a speed holds four times in five. Its source is 'measured' (you"
                " did), 'published' (this model was run on this GPU) or 'derived' (from data sheets"
                " and other runs; the widest). Lines with ~ name plans that may be as fast as the"
                " first, lines with ! what to be careful with."
            ),
        ),
        (
            ("--why", "all doubts, and which measurement would remove the most"),
            ("--extrapolate", "also rank first what is larger than anything measured"),
        ),
        (
            "deepvm performance predict --model llama-8b --method fsdp --gpu H100 --gpus 64",
            "deepvm recommend 3 --why",
        ),
        "docs/explain/performance.md",
    ),
    Topic(
        ("output", "formats", "format", "json", "csv", "yaml", "html", "color", "colour"),
        "Tables, JSON, YAML, CSV, a page; colour and width.",
        (
            (
                "Answers go to stdout, notes and errors to stderr. A table leaves out columns that"
                " a narrow terminal has no room for, and names them; a pipe gets all of them."
                " NO_COLOR=1 turns colour off, FORCE_COLOR=1 on."
            ),
        ),
        (
            ("-o json", "or yaml, for programs: the same keys in every release of a schema"),
            ("-o csv", "for a spreadsheet"),
            ("-o html > plan.html", "of recommend: a page that needs no network"),
            ("--why", "of recommend: all reasons, on one more screen"),
        ),
        ("deepvm recommend 3 -o json", "deepvm gpus -o csv"),
        "docs/reference/cli.md",
    ),
    Topic(
        ("settings", "environment", "variables", "configuration", "defaults", "toml"),
        "Options that you need not repeat.",
        (
            (
                "Every option of recommend, explain and sweep that says what to plan can be set for"
                " good: in ~/.config/deepvm/config.toml, in deepvm.toml of the current folder, or"
                " in the environment. The command line goes before the environment, and that before"
                " files."
            ),
        ),
        (
            ('region = ["us-west-2"]', "a line of such a file; the names are those of the options"),
            ("DEEPVM_REGION=us-west-2", "the same in the environment"),
            ("DEEPVM_CONFIG=none", "no file of your own"),
        ),
        ("deepvm config show",),
        "docs/reference/settings.md",
    ),
    Topic(
        ("completion", "tab", "shell", "bash", "zsh", "fish"),
        "Let the Tab key complete commands, options and their values.",
        (
            (
                "--install-completion adds it to the shell that you use (bash, zsh or fish), once;"
                " open a new terminal then. Regions, GPU models, instance types, model presets,"
                " catalogs and topics complete, too, and no request is sent for that."
            ),
            (
                "Where the shell is not recognised, have its script printed, and save it: "
                "_DEEPVM_COMPLETE=source_fish deepvm > ~/.config/fish/completions/deepvm.fish"
            ),
        ),
        (
            ("--install-completion", "set it up for this shell"),
            ("--show-completion", "only print the script"),
        ),
        ("deepvm --help",),
        "docs/reference/settings.md",
    ),
    Topic(
        ("recovery", "faults", "failures", "chaos", "bitwise", "goodput", "ecrl"),
        "Prove that training resumes correctly after failures.",
        (
            (
                "It trains small models, lets them fail on purpose (kills anywhere, torn files,"
                " failing disks), and audits what they leave: samples exact, final parameters equal"
                " bit for bit. Then it compares what strategies of checkpointing cost, and writes"
                " tables, figures and a page. 'deepvm lab selftest' makes mistakes on purpose: each"
                " must fail its own gate."
            ),
        ),
        (
            ("--out lab", "the folder of the runs; the same command goes on with what is missing"),
            ("--only 'digits*'", "some runs, by their names"),
            ("--jobs 2", "two at once; their times then mean little"),
        ),
        ("deepvm lab list",),
        "docs/guide/lab.md",
    ),
    Topic(
        ("exit-codes", "exit", "errors", "scripts", "debug"),
        "What a script can rely on.",
        (
            (
                "0: done. 1: a measurement or a process failed. 2: wrong usage. 3: nothing is"
                " feasible. 4: data is missing or unreadable. 5: the cloud or the network did not"
                " answer. 130: Ctrl-C. 141: the reader of a pipe left."
            ),
            (
                "Errors name the option, the value, and what is allowed. A traceback is shown only"
                " with --debug, which works anywhere on the command line."
            ),
        ),
        (("--debug", "show where an error comes from"),),
        ("deepvm recommend 3 -o json",),
        "docs/reference/exit-codes.md",
    ),
    Topic(
        ("python", "api", "library", "pandas"),
        "The same from a program.",
        (
            (
                "deepvm.recommend() returns the ranking, deepvm.explain() why a type is not in it,"
                " deepvm.sweep() several budgets. The arguments are named as the options. Errors"
                " are subclasses of deepvm.DeepVMError; nothing feasible is no error but an empty"
                " answer."
            ),
        ),
        (("deepvm.to_frame(answer)", "a pandas data frame, where pandas is installed"),),
        ("deepvm recommend 3 -o json",),
        "docs/guide/python.md",
    ),
)


def topic_names() -> list[str]:
    """The topics as they are listed."""
    return [topic.names[0] for topic in TOPICS]


def find_topic(name: str) -> Topic | None:
    """A topic by any of its names."""
    wanted = name.casefold().replace("_", "-")
    return next((topic for topic in TOPICS if wanted in topic.names), None)


def screen(topic: Topic, width: int) -> str:
    """A topic as a text of so many columns; commands stay whole."""
    from deepvm.reports.terminal import wrapped

    lines = [f"{topic.names[0]}: {topic.line}", ""]
    for paragraph in topic.idea:
        lines += [*wrapped(paragraph, width, ""), ""]
    column = max(len(option) for option, _ in topic.options) + 2
    for option, text in topic.options:
        first, *others = wrapped(text, width - column, "")
        lines += [f"{option:{column}}{first}", *(" " * column + other for other in others)]
    return "\n".join(
        [*lines, "", *(f"$ {example}" for example in topic.examples), "", f"More: {topic.page}", ""]
    )
