package version

import (
	"runtime/debug"
	"sync"
)

// Version is the release, which the linker sets. It is "" in other builds.
var Version string

// String returns the release, else the module's version or revision that the Go tool recorded, else
// "devel". It is never "", and printable ASCII without spaces.
func String() string {
	if Version != "" {
		return Version
	}
	return recorded()
}

var recorded = sync.OnceValue(func() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "devel"
	}
	return fromBuildInfo(info)
})

// fromBuildInfo returns the module version, or the revision, with "+dirty" if the tree was
// modified.
func fromBuildInfo(info *debug.BuildInfo) string {
	if v := info.Main.Version; v != "" && v != "(devel)" {
		return v
	}
	var revision, dirty string
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision" && len(s.Value) >= 12:
			revision = s.Value[:12]
		case s.Key == "vcs.modified" && s.Value == "true":
			dirty = "+dirty"
		}
	}
	if revision == "" {
		return "devel"
	}
	return "devel-" + revision + dirty
}
