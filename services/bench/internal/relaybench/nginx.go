package relaybench

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/millrace/millrace/services/bench/internal/process"
)

// nginxConfig is Debian's configuration as far as it matters (a worker process for each processor, one line in the access log
// for each request), with the limits raised that a client of many long streams would run into: the yardstick is nginx at its
// best. It keeps connections to the workers open, since it opens one for each request that runs.
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
{{range .Workers}}		server {{.}};
{{end}}		keepalive 16384;
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

// startNginx starts nginx on address, relaying to the workers; what it writes lies in dir.
func startNginx(ctx context.Context, path, dir, address string, workers []string) (*process.Program, error) {
	var text strings.Builder
	if err := nginxConfig.Execute(&text, map[string]any{
		"Root": os.Geteuid() == 0, "Dir": dir, "Listen": address, "Workers": workers,
	}); err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return nil, err
	}
	p, err := process.Start(ctx, "nginx", path, "-e", "stderr", "-p", dir, "-c", file)
	if err != nil {
		return nil, fmt.Errorf("%w; --nginx '' measures without it", err)
	}
	return p, nil
}
