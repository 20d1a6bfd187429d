package relaybench

import (
	"errors"
	"fmt"
	"os/exec"
)

// Programs are what a benchmark starts, and how it speaks with them.
type Programs struct {
	Scheduler, Worker string // paths
	Nginx             string // path, or a name looked up where programs of administrators are too; empty: without nginx
	Model             string // model file whose vocabulary is used; empty: a small synthetic one
	Connections       int    // of this client, to each program
	Seed              uint64
}

func (p *Programs) wrong() error {
	return within("--connections", p.Connections, 1<<10)
}

// within refuses a count outside [1, high].
func within(name string, value, high int) error {
	if value < 1 || value > high {
		return fmt.Errorf("%s %d: want 1 to %d", name, value, high)
	}
	return nil
}

// errNoNginx says what a run without nginx lacks.
var errNoNginx = errors.New("nginx is not installed, so that nothing is held against it: " +
	"`apt-get install nginx-light` has it, --nginx PATH names one that lies elsewhere, --nginx '' goes without")

// findNginx is the path of nginx; errNoNginx where there is none.
func (p *Programs) findNginx() (string, error) {
	if p.Nginx == "" {
		return "", errors.New("nginx was not asked for, so that nothing is held against it")
	}
	for _, name := range []string{p.Nginx, "/usr/sbin/" + p.Nginx} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", errNoNginx
}
