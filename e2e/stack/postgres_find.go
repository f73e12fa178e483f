package stack

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"github.com/walrelay/walrelay/e2e/proc"
)

// Postgres as a Maven artifact: initdb, pg_ctl and postgres with their libraries in an
// archive inside a jar.
var postgresArtifacts = map[string]string{"15": "15.15.0", "16": "16.11.0", "17": "17.7.0", "18": "18.1.0"}

const newestPostgres = "18"

// findPostgres returns the folder with the binaries of a major version. Installed ones
// come first: nothing has to be fetched.
func findPostgres(ctx context.Context, version string) (major, bin string, err error) {
	majors := []string{version}
	if version == "" {
		majors = []string{"18", "17", "16", "15"}
	}
	for _, major := range majors {
		bin := filepath.Join("/usr/lib/postgresql", major, "bin")
		if _, err := os.Stat(filepath.Join(bin, "postgres")); err == nil {
			return major, bin, nil
		}
	}
	if version == "" {
		version = newestPostgres
	}
	release, ok := postgresArtifacts[version]
	if !ok {
		return "", "", fmt.Errorf("version %s is neither in /usr/lib/postgresql nor known as an artifact", version)
	}
	dir, err := cached(ctx, "postgres-"+release, func(ctx context.Context, dir string) error {
		return fetchPostgres(ctx, dir, release)
	})
	return version, filepath.Join(dir, "bin"), err
}

func fetchPostgres(ctx context.Context, dir, release string) error {
	arch, ok := map[string]string{"amd64": "amd64", "arm64": "arm64v8"}[runtime.GOARCH]
	if !ok {
		return fmt.Errorf("no artifact for %s", runtime.GOARCH)
	}
	for program, install := range map[string]string{"unzip": "apt-get install unzip", "xz": "apt-get install xz-utils"} {
		if _, err := lookPath(program, install); err != nil {
			return err
		}
	}
	artifact := "embedded-postgres-binaries-linux-" + arch
	if err := maven(ctx, dir, "dependency:copy", "-Dartifact=io.zonky.test.postgres:"+artifact+":"+release, "-DoutputDirectory="+dir); err != nil {
		return err
	}
	jar := filepath.Join(dir, artifact+"-"+release+".jar")
	if err := proc.Run(ctx, dir, nil, "sh", "-c", `unzip -p "$1" '*.txz' | tar -xJf - && rm "$1"`, "unpack", jar); err != nil {
		return err
	}
	return exec.CommandContext(ctx, "chmod", "-R", "go+rX", dir).Run()
}

// postgresUser is the user whom Postgres runs as: nil is our own. Postgres refuses root.
func postgresUser() (*syscall.Credential, error) {
	if os.Getuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, _ := strconv.ParseUint(u.Uid, 10, 32)
		gid, _ := strconv.ParseUint(u.Gid, 10, 32)
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, fmt.Errorf("running as root needs a user postgres or nobody for the server")
}
