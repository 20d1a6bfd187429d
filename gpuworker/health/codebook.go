package health

import (
	"time"

	"github.com/millrace/millrace/gpuworker/vectors"
)

// ofCodebook judges a loaded codebook.
func ofCodebook(c vectors.Status, interval time.Duration) []verdict {
	name := CheckCodebook + "/" + c.Name
	if c.State != vectors.Ready {
		return []verdict{failed(name, Degraded, "%v", c.Problem)}
	}
	all := []verdict{passed(name)}
	switch name := CheckCodebookResidency + "/" + c.Name; {
	case interval <= 0:
	case c.VerifiedAge <= overdueAfter*interval:
		all = append(all, passed(name))
	default:
		all = append(all, failed(name, Degraded, "the resident bytes were last checked %v ago and checks are due every %v: the "+
			"device is too busy for them; raise --verify-interval or send the worker less", c.VerifiedAge.Round(time.Second), interval))
	}
	return all
}
