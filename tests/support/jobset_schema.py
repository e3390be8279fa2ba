"""A JSON schema of what the manifests use, and of nothing else: a field that is misspelt, or new, is refused.

Written after the types of JobSet v0.10 (kubernetes-sigs/jobset, api/jobset/v1alpha2/jobset_types.go) and of
Kubernetes (batch/v1 and core/v1 of its API reference).
"""


def _object(required=(), **properties):
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _list(items, **limits):
    return {"type": "array", "items": items, "minItems": 1} | limits


_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
# Of an object, and of one of its pods: the rest of a pod's name takes 23 of the 63 characters.
_NAME = {"type": "string", "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40}
_LABELS = {"type": "object", "additionalProperties": _TEXT}
_CHIPS = {
    "type": "object",
    "propertyNames": {"enum": ["google.com/tpu", "nvidia.com/gpu"]},
    "additionalProperties": _COUNT,
}

_CONTAINER = _object(
    ["name", "image", "command", "resources"],
    name=_NAME,
    image=_TEXT,
    command=_list({"type": "string"}),
    env=_list(_object(["name", "value"], name=_TEXT, value={"type": "string"})),
    ports=_list(
        _object(["containerPort"], containerPort={"type": "integer", "minimum": 1, "maximum": 65535})
    ),
    resources=_object(["limits", "requests"], limits=_CHIPS, requests=_CHIPS),
    securityContext=_object(privileged={"type": "boolean"}, runAsUser={"type": "integer", "minimum": 0}),
    volumeMounts=_list(_object(["name", "mountPath"], name=_NAME, mountPath=_TEXT)),
)

_POD = _object(
    ["restartPolicy", "containers"],
    restartPolicy={"const": "Never"},  # what podFailurePolicy asks for
    serviceAccountName=_TEXT,
    terminationGracePeriodSeconds=_COUNT,
    nodeSelector=_LABELS,
    securityContext=_object(fsGroup=_COUNT),
    containers=_list(_CONTAINER),
    volumes=_list(_object(["name", "emptyDir"], name=_NAME, emptyDir=_object(medium={"const": "Memory"}))),
)

_POD_FAILURE_RULE = _object(
    ["action"],
    action={"enum": ["FailJob", "FailIndex", "Ignore", "Count"]},
    onExitCodes=_object(
        ["operator", "values"],
        containerName=_NAME,
        operator={"enum": ["In", "NotIn"]},
        values=_list({"type": "integer", "minimum": 1, "maximum": 255}, uniqueItems=True),
    ),
    onPodConditions=_list(
        _object(["type", "status"], type=_TEXT, status={"enum": ["True", "False", "Unknown"]})
    ),
) | {"oneOf": [{"required": ["onExitCodes"]}, {"required": ["onPodConditions"]}]}

_JOB = _object(
    ["template"],
    completionMode={"enum": ["Indexed", "NonIndexed"]},
    parallelism=_COUNT,
    completions=_COUNT,
    backoffLimit={"type": "integer", "minimum": 0},
    podFailurePolicy=_object(["rules"], rules=_list(_POD_FAILURE_RULE, maxItems=20)),
    template=_object(["spec"], spec=_POD),
)

_FAILURE_RULE = _object(
    ["name", "action"],
    name={"type": "string", "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$"},
    action={
        "enum": [
            "FailJobSet",
            "RestartJobSet",
            "RestartJobSetAndIgnoreMaxRestarts",
            "RestartJob",
            "RestartJobAndIgnoreMaxRestarts",
        ]
    },
    onJobFailureReasons=_list(
        {"enum": ["BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded",
                  "PodFailurePolicy"]},
        uniqueItems=True,
    ),
    onJobFailureMessagePatterns=_list({"type": "string", "format": "regex"}, uniqueItems=True),
    targetReplicatedJobs=_list(_NAME),
)  # fmt: skip

JOBSET = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "jobset.x-k8s.io/v1alpha2"},
    kind={"const": "JobSet"},
    metadata=_object(["name"], name=_NAME, namespace=_NAME, annotations=_LABELS, labels=_LABELS),
    spec=_object(
        ["replicatedJobs"],
        failurePolicy=_object(
            maxRestarts={"type": "integer", "minimum": 0},
            restartStrategy={"enum": ["Recreate", "BlockingRecreate", "InPlaceRestart"]},
            rules=_list(_FAILURE_RULE),
        ),
        replicatedJobs=_list(
            _object(["name", "template"], name=_NAME, replicas=_COUNT, template=_object(["spec"], spec=_JOB))
        ),
    ),
)
