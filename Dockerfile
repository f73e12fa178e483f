FROM golang:1.26.8-bookworm AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=container
RUN CGO_ENABLED=0 go build -trimpath -ldflags "-s -w -X main.version=${VERSION}" -o /out/walrelay ./cmd/walrelay
RUN apt-get update && apt-get install -y --no-install-recommends ca-certificates tini \
 && install -d -o 65532 -g 65532 /out/state

# Nothing but the binary, the certificate authorities, and an init: a process that is
# number 1 itself cannot be ended by SIGABRT, which is how a panic is told from a usage error.
FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
COPY --from=build /usr/bin/tini-static /tini
COPY --from=build /src/LICENSE /LICENSE
COPY --from=build /out/walrelay /walrelay
COPY --from=build --chown=65532:65532 /out/state /var/lib/walrelay
USER 65532:65532
WORKDIR /var/lib/walrelay
VOLUME ["/var/lib/walrelay"]
ENV STATE_DIRECTORY=/var/lib/walrelay WALRELAY_HTTP=:9464
EXPOSE 9464
ENTRYPOINT ["/tini", "--", "/walrelay"]
CMD ["run"]
