package version

import (
	"runtime/debug"
	"sync"
)

// Version is the release, set by the linker; empty in builds that did not set it.
var Version string

// String is the release, else the module's version or revision as the Go tool recorded it, else "devel". Never empty,
// always printable ASCII without spaces.
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

// fromBuildInfo prefers the module version, then the revision with "+dirty" when the tree was changed.
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
