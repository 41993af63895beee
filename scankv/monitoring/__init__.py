"""A Grafana dashboard and Prometheus alert rules, as files: `grafana-dashboard.json` and `alerts.yml`."""
