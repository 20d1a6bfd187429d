package faults

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"
)

// docker runs the docker program for the containers of one Compose project. The containers of the
// service scaled are numbered.
type docker struct{ project, scaled string }

// run returns the output of docker.
func (d docker) run(ctx context.Context, args ...string) (string, error) {
	return runProgram(ctx, "docker", args...)
}

// runProgram returns the output of a program, or an error with the last line that it wrote to
// stderr.
func runProgram(ctx context.Context, program string, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, program, args...).Output()
	if err != nil {
		line := ""
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			all := strings.Split(strings.TrimSpace(string(exit.Stderr)), "\n")
			line = ": " + all[len(all)-1]
		}
		return "", fmt.Errorf("%s %s: %w%s", program, strings.Join(args, " "), err, line)
	}
	return strings.TrimSpace(string(out)), nil
}

const (
	labelService = "com.docker.compose.service"
	labelNumber  = "com.docker.compose.container-number"
	labelProject = "com.docker.compose.project"
)

// containers returns the project's containers by the ids that the workers and schedulers in them
// must have.
func (d docker) containers(ctx context.Context) (map[string]string, error) {
	out, err := d.run(ctx, "ps", "-a", "--filter", "label="+labelProject+"="+d.project,
		"--format", fmt.Sprintf("{{.Label %q}} {{.Label %q}} {{.ID}}", labelService, labelNumber))
	if err != nil {
		return nil, err
	}
	return parseContainers(out, d.scaled)
}

// parseContainers parses lines of service, number and container.
func parseContainers(out, scaled string) (map[string]string, error) {
	all := map[string]string{}
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("docker ps: %q: want service, number and container", line)
		}
		name := fields[0]
		if name == scaled {
			name += "-" + fields[1]
		}
		if all[name] != "" {
			return nil, fmt.Errorf("docker ps: containers %s and %s are both %s", all[name], fields[2], name)
		}
		all[name] = fields[2]
	}
	return all, nil
}

// container returns the container of a name.
func (d docker) container(ctx context.Context, name string) (string, error) {
	all, err := d.containers(ctx)
	if err == nil && all[name] == "" {
		err = fmt.Errorf("project %s has no container for %s", d.project, name)
	}
	return all[name], err
}

// on runs `docker VERB ARGS CONTAINER` for the container of a name.
func (d docker) on(ctx context.Context, name string, verb ...string) (string, error) {
	id, err := d.container(ctx, name)
	if err != nil {
		return "", err
	}
	return d.run(ctx, append(verb, id)...)
}

// ended returns when a container's program ended, by the clock of Docker: removing the container's
// network takes longer than streams last.
func (d docker) ended(ctx context.Context, id string) (time.Time, error) {
	out, err := d.run(ctx, "inspect", "--format", "{{.State.FinishedAt}}", id)
	if err != nil {
		return time.Time{}, err
	}
	return time.Parse(time.RFC3339Nano, out)
}

// inside runs a program in the container of a name.
func (d docker) inside(ctx context.Context, name string, program ...string) (string, error) {
	id, err := d.container(ctx, name)
	if err != nil {
		return "", err
	}
	return d.run(ctx, append([]string{"exec", id}, program...)...)
}

// partition disconnects a container from its network; heal connects it again, under the names that
// it had.
func (d docker) partition(ctx context.Context, id string) (heal func(context.Context) error, err error) {
	out, err := d.run(ctx, "inspect", "--format", "{{range $n, $v := .NetworkSettings.Networks}}{{$n}}{{range $v.Aliases}} {{.}}{{end}}\n{{end}}", id)
	if err != nil {
		return nil, err
	}
	fields := strings.Fields(out)
	if len(fields) == 0 || strings.Contains(out, "\n") {
		return nil, fmt.Errorf("container %s is on networks %q: want one", id, out)
	}
	connect := []string{"network", "connect"}
	for _, alias := range fields[1:] {
		connect = append(connect, "--alias", alias)
	}
	connect = append(connect, fields[0], id)
	_, err = d.run(ctx, "network", "disconnect", "--force", fields[0], id)
	return func(ctx context.Context) error {
		_, err := d.run(ctx, connect...)
		return err
	}, err
}

// compose runs Compose on the project: the plugin, or the older program if there is no plugin.
func (d docker) compose(ctx context.Context, args ...string) error {
	args = append([]string{"--project-name", d.project}, args...)
	if _, err := d.run(ctx, "compose", "version"); err == nil {
		_, err = d.run(ctx, append([]string{"compose"}, args...)...)
		return err
	}
	_, err := runProgram(ctx, "docker-compose", args...)
	return err
}
