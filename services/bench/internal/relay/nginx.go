package relay

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"github.com/millrace/millrace/services/bench/internal/proc"
)

// nginxConfig is Debian's configuration (one worker process for each processor, one line in the
// access log for each request) with higher limits, because many long streams on one connection
// exceed the defaults. It keeps connections to the worker open, because nginx uses one for each
// running request.
var nginxConfig = template.Must(template.New("nginx").Parse(`{{if .Root}}user root;
{{end}}daemon off;
worker_processes auto;
worker_rlimit_nofile 65536;
pid {{.Dir}}/nginx.pid;
error_log stderr error;
events { worker_connections 32768; }
http {
	access_log {{.Dir}}/nginx-access.log;
	tcp_nopush on;
	types_hash_max_size 2048;
	client_body_temp_path {{.Dir}}/nginx-body;
	proxy_temp_path {{.Dir}}/nginx-proxy;
	fastcgi_temp_path {{.Dir}}/nginx-fastcgi;
	uwsgi_temp_path {{.Dir}}/nginx-uwsgi;
	scgi_temp_path {{.Dir}}/nginx-scgi;
	client_max_body_size 0;
	client_body_buffer_size 1m;
	keepalive_timeout 1h;
	keepalive_requests 1000000000;
	upstream workers {
		server {{.Worker}};
		keepalive 16384;
		keepalive_requests 1000000000;
	}
	server {
		listen {{.Listen}} http2;
		http2_max_concurrent_streams 16384;
		location / {
			grpc_pass grpc://workers;
			grpc_read_timeout 1h;
			grpc_send_timeout 1h;
		}
	}
}
`))

// Time limits. A program that exceeds one hangs.
const (
	startTimeout = 2 * time.Minute
	stopTimeout  = 45 * time.Second
)

// Reasons of a run without nginx.
var (
	errNginxNotWanted = errors.New("nginx is off, so the scheduler is compared with nothing")
	errNginxMissing   = errors.New("nginx is not installed, so the scheduler is compared with nothing: " +
		"install it with `apt-get install nginx-light`, or name it with --nginx PATH")
)

// findNginx returns the path of nginx. Debian installs it in /usr/sbin, which may not be in PATH.
func findNginx(name string) (string, error) {
	if name == "" {
		return "", errNginxNotWanted
	}
	for _, each := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(each); err == nil {
			return path, nil
		}
	}
	return "", errNginxMissing
}

// nginx is a running nginx with the folder of its files.
type nginx struct {
	*proc.Program
	dir string
}

// startNginx starts nginx at a free address, relaying to the worker. The caller must stop it.
func startNginx(ctx context.Context, path, worker string) (_ *nginx, address string, err error) {
	dir, err := os.MkdirTemp("", "millrace-bench-nginx-*")
	if err != nil {
		return nil, "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(dir))
		}
	}()
	if address, err = proc.FreeAddress(ctx); err != nil {
		return nil, "", err
	}
	var text strings.Builder
	if err := nginxConfig.Execute(&text, map[string]any{
		"Root": os.Geteuid() == 0, "Dir": dir, "Listen": address, "Worker": worker,
	}); err != nil {
		return nil, "", err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, "", err
	}
	// nginx must outlive ctx: an interrupt ends the calls first.
	p, err := proc.Start(context.WithoutCancel(ctx), "nginx", path, "-e", "stderr", "-p", dir, "-c", file)
	if err != nil {
		return nil, "", fmt.Errorf("%w; --nginx '' measures without it", err)
	}
	return &nginx{Program: p, dir: dir}, address, nil
}

func (n *nginx) stop() error { return errors.Join(n.Program.Stop(stopTimeout), os.RemoveAll(n.dir)) }
