package vectors

import (
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/fault"
)

// maxReplicas is the contract's bound.
const maxReplicas = 1024

// longestName is how many bytes the name of a codebook may have at workers.
const longestName = 200

// checkName refuses what is no codebook's name: it can be routed nowhere.
func checkName(field, name string) error {
	switch {
	case name == "":
		return fault.Invalid("the request names no codebook: set "+field+", see ListCodebooks",
			rpc.Violation{Field: field, Description: "must not be empty"})
	case len(name) > longestName:
		return fault.Invalid(fmt.Sprintf("the request's codebook name has %d bytes: must be at most %d, see ListCodebooks", len(name), longestName),
			rpc.Violation{Field: field, Description: fmt.Sprintf("must be at most %d bytes", longestName)})
	case !fs.ValidPath(name) || name == ".":
		return fault.Invalid("the request names no codebook: a name is path steps divided by \"/\", none of them \".\" or \"..\"",
			rpc.Violation{Field: field, Description: fmt.Sprintf("%.64q is not the name of a codebook", name)})
	}
	return nil
}

// replicasOf is how many copies are wanted.
func replicasOf(field string, n *uint32) (int, error) {
	switch {
	case n == nil:
		return 1, nil
	case *n < 1 || *n > maxReplicas:
		return 0, fault.Invalid(fmt.Sprintf("replicas is %d: must be in [1, %d]", *n, maxReplicas),
			rpc.Violation{Field: field, Description: fmt.Sprintf("must be in [1, %d]", maxReplicas)})
	}
	return int(*n), nil
}
