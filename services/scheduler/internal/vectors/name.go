package vectors

import (
	"fmt"
	"io/fs"

	"github.com/millrace/millrace/services/internal/rpc"
	"github.com/millrace/millrace/services/scheduler/internal/rpcstatus"
)

// maxReplicas is part of the contract.
const maxReplicas = 1024

// longestName is the limit of the workers, in bytes.
const longestName = 200

// checkName refuses an invalid name of a codebook, because no worker can have it.
func checkName(field, name string) error {
	switch {
	case name == "":
		return rpcstatus.Invalid("the request names no codebook: set "+field+", see ListCodebooks",
			rpc.Violation{Field: field, Description: "must not be empty"})
	case len(name) > longestName:
		return rpcstatus.Invalid(fmt.Sprintf("the request's codebook name has %d bytes: must be at most %d, see ListCodebooks", len(name), longestName),
			rpc.Violation{Field: field, Description: fmt.Sprintf("must be at most %d bytes", longestName)})
	case !fs.ValidPath(name) || name == ".":
		return rpcstatus.Invalid("the request names no codebook: a name is path steps divided by \"/\", none of them \".\" or \"..\"",
			rpc.Violation{Field: field, Description: fmt.Sprintf("%.64q is not the name of a codebook", name)})
	}
	return nil
}

// replicasOf validates the number of copies.
func replicasOf(field string, n *uint32) (int, error) {
	switch {
	case n == nil:
		return 1, nil
	case *n < 1 || *n > maxReplicas:
		return 0, rpcstatus.Invalid(fmt.Sprintf("replicas is %d: must be in [1, %d]", *n, maxReplicas),
			rpc.Violation{Field: field, Description: fmt.Sprintf("must be in [1, %d]", maxReplicas)})
	}
	return int(*n), nil
}
